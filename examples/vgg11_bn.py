"""VGG-11 with batch norm (Simonyan and Zisserman, 2015), with torchvision's parameter names.

nestfl run --plugin examples/vgg11_bn.py model=vgg11_bn dataset=cifar10 strategy=scalefl \\
    train.lr=0.01 model.norm=bn-running model.weights=torchvision:VGG11_BN_Weights.IMAGENET1K_V1
"""

from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d

from models import Slice, SlicedNetwork, declare_parts, early_heads, register
from models.layers import NormKind, PoolHead, choose_norm, initialise

CHANNELS = (1, 2, 4, 4, 8, 8, 8, 8)  # of each convolution, in units of the first one's
POOLED = (1, 2, 4, 6, 8)  # the convolutions that a pool follows


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
        self.depth = slice.depth(len(CHANNELS))
        widths = [in_channels, *(slice.channels(size * share) for share in CHANNELS)]
        self.features, self.ends = nn.Sequential(), [0]  # where each unit ends in this list
        for unit in range(1, self.depth + 1):
            self.features.append(nn.Conv2d(widths[unit - 1], widths[unit], 3, padding=1))
            self.features.extend([choose_norm(norm)(widths[unit]), nn.ReLU(inplace=True)])
            if unit in POOLED:
                self.features.append(nn.MaxPool2d(2, ceil_mode=True))  # of 8 pixels one is left
            self.ends.append(len(self.features))
        self.exits = early_heads(slice, 8, lambda unit: PoolHead(widths[unit], num_classes))
        if self.depth == len(CHANNELS):
            hidden = slice.channels(64 * size)
            first, second = nn.Linear(7 * 7 * widths[-1], hidden), nn.Linear(hidden, hidden)
            declare_parts(first, "weight", axis=1, sizes=[widths[-1]], run=7 * 7)  # flattened
            between, last = (nn.ReLU(inplace=True), nn.Dropout()), nn.Linear(hidden, num_classes)
            self.classifier = nn.Sequential(first, *between, second, *between, last)
        self.apply(initialise)

    def unit(self, number: int) -> nn.Module:
        return self.features[self.ends[number - 1] : self.ends[number]]

    def final_head(self, x: Tensor) -> Tensor:
        logits: Tensor = self.classifier(adaptive_avg_pool2d(x, 7).flatten(1))
        return logits
