"""VGG-11 with batch norm (Simonyan and Zisserman, 2015), with torchvision's parameter names.

nestfl run --plugin examples/vgg11_bn.py model=vgg11_bn dataset=cifar10 strategy=scalefl \\
    model.norm=bn-running model.weights=torchvision:VGG11_BN_Weights.IMAGENET1K_V1
"""

from itertools import pairwise

from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d

from models import Slice, SlicedNetwork, declare_parts, register
from models.families import Features
from models.layers import NormKind, PoolHead, choose_norm, initialise

CHANNELS = (1, 2, 4, 4, 8, 8, 8, 8)  # of each convolution, in units of the first one's
POOLED = (1, 2, 4, 6, 8)  # the convolutions that a pool follows
SIDE = 7  # of the image that the classifier reads


@register("vgg11_bn", units=8)
class VGG11(SlicedNetwork):
    """Eight convolutions and three linear layers; an early exit is a pool and a linear layer."""

    def __init__(
        self,
        num_classes: int,
        in_channels: int,
        slice: Slice,
        norm: NormKind = "bn",
        size: int = 64,
    ) -> None:
        super().__init__()
        self.depth = slice.exits[-1] if slice.exits else len(CHANNELS)
        widths = [slice.channels(size * share) for share in CHANNELS[: self.depth]]
        layers: list[nn.Module] = []
        self.ends = [0]  # where each unit ends in the list of layers
        for unit, (inputs, outputs) in enumerate(pairwise([in_channels, *widths]), 1):
            convolution = nn.Conv2d(inputs, outputs, 3, padding=1)
            layers += [convolution, choose_norm(norm)(outputs), nn.ReLU(inplace=True)]
            if unit in POOLED:
                layers.append(nn.MaxPool2d(2, ceil_mode=True))  # lest nothing is left of 8 pixels
            self.ends.append(len(layers))
        self.features = nn.Sequential(*layers)
        early = [unit for unit in slice.exits or () if unit < len(CHANNELS)]
        self.exits = nn.ModuleDict({str(n): PoolHead(widths[n - 1], num_classes) for n in early})
        if self.depth == len(CHANNELS):
            hidden = slice.channels(64 * size)
            first, second = nn.Linear(widths[-1] * SIDE**2, hidden), nn.Linear(hidden, hidden)
            declare_parts(first, "weight", 1, (widths[-1],), run=SIDE**2)  # flattened images
            between = (nn.ReLU(inplace=True), nn.Dropout())
            last = nn.Linear(hidden, num_classes)
            self.classifier = nn.Sequential(first, *between, second, *between, last)
        self.apply(initialise)

    def enter(self, x: Tensor) -> Features:
        return (x,)

    def unit(self, number: int) -> nn.Module:
        return self.features[self.ends[number - 1] : self.ends[number]]

    def final_head(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(adaptive_avg_pool2d(x, SIDE).flatten(1))
        return logits
