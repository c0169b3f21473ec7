"""Layers that convolutional families choose from: norms, scalers, and exit heads."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NormKind = Literal["bn", "bn-running", "bn-static", "gn"]
ScalerKind = Literal["none", "train", "always"]
HeadKind = Literal["conv", "pool", "attention"]
StepKind = Literal["none", "learnable", "constant"]


class StaticBatchNorm2d(nn.BatchNorm2d):
    """HeteroFL's static BN: batch statistics while training, gathered ones at test time.

    Training never changes the statistics. To accumulate them, set `gathering` and run data through
    the network in train mode: they are the cumulative mean over batches, as `momentum=None` defines
    it.
    """

    gathering = False

    def __init__(self, channels: int) -> None:
        super().__init__(channels, momentum=None)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and not self.gathering:
            return F.batch_norm(x, None, None, self.weight, self.bias, training=True, eps=self.eps)
        return super().forward(x)


def group_norm(channels: int) -> nn.GroupNorm:
    """Return a norm by groups of up to 8 channels: a slice of whole groups normalises alike."""
    return nn.GroupNorm(channels // math.gcd(channels, 8), channels)


Norm = Callable[[int], nn.Module]

_NORMS: dict[str, Norm] = {
    "bn": lambda channels: nn.BatchNorm2d(channels, track_running_stats=False),
    "bn-running": nn.BatchNorm2d,
    "bn-static": StaticBatchNorm2d,
    "gn": group_norm,
}


def choose_norm(kind: NormKind) -> Norm:
    """Return the norm layer's constructor, which takes the number of channels."""
    if kind not in _NORMS:
        raise ValueError(f"unknown norm {kind!r}; choose from {', '.join(_NORMS)}")
    return _NORMS[kind]


class Scaler(nn.Module):
    """Divides a sliced layer's output by the share of its width (HeteroFL; in ScaleFL always)."""

    def __init__(self, share: float, always: bool) -> None:
        super().__init__()
        self.share, self.always = share, always

    def forward(self, x: Tensor) -> Tensor:
        return x / self.share if self.always or self.training else x


def choose_scaler(kind: ScalerKind, share: float) -> nn.Module:
    """Return the layer that divides by the share of the channels that are kept (HeteroFL)."""
    if kind not in ("none", "train", "always"):
        raise ValueError(f"unknown scaler {kind!r}; choose from none, train, always")
    return nn.Identity() if kind == "none" or share == 1 else Scaler(share, kind == "always")


def give_step(block: nn.Module, name: str, kind: StepKind) -> None:
    """Give a block the step size of a residual branch, under a name that ends with `step` (NeFL).

    It starts at 1, and is a parameter, or a constant that is sent with the weights.
    """
    if kind not in ("none", "learnable", "constant"):
        raise ValueError(f"unknown steps {kind!r}; choose from none, learnable, constant")
    if kind == "constant":
        block.register_buffer(name, torch.ones(()))
    elif kind == "learnable":
        block.register_parameter(name, nn.Parameter(torch.ones(())))
    else:
        # None keeps the attribute, for `stepped`, without a tensor in the state dict.
        block.register_parameter(name, None)


def stepped(branch: Tensor, step: Tensor | None) -> Tensor:
    """Return a residual branch times its step size, if it has one."""
    return branch if step is None else step * branch


class Conv(Protocol):
    """Makes a convolution with a chosen kernel."""

    def __call__(
        self, inputs: int, outputs: int, stride: int = 1, groups: int = 1
    ) -> nn.Conv2d: ...


def convolution(
    kernel: tuple[int, int], inputs: int, outputs: int, stride: int = 1, groups: int = 1
) -> nn.Conv2d:
    """Return a convolution that keeps its input's sides, or divides them by the stride.

    The kernel's sides are odd, so both sides get the same padding.
    """
    height, width = kernel
    padding = (height // 2, width // 2)
    return nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)


conv3x3: Conv = partial(convolution, (3, 3))


def initialise(module: nn.Module) -> None:
    """Initialise a convolution as He et al. do; use with `apply` on a network."""
    if isinstance(module, nn.Conv2d) and not module.weight.is_meta:
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        if module.bias is not None:
            nn.init.zeros_(module.bias)


class PoolHead(nn.Module):
    """Global average pool and a linear layer: the exit of collaborative inference (CIS)."""

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        self.fc = nn.Linear(channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits


class ConvHead(PoolHead):
    """ScaleFL's exit: three 3x3 convolutions at the backbone's width, then pool and linear."""

    def __init__(
        self, channels: int, num_classes: int, norm: Norm, scale: nn.Module, conv: Conv = conv3x3
    ) -> None:
        super().__init__(channels, num_classes)
        self.convs = nn.ModuleList(conv(channels, channels) for _ in range(3))
        self.norms = nn.ModuleList(norm(channels) for _ in range(3))
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        for conv, normalise in zip(self.convs, self.norms, strict=True):
            x = F.relu(normalise(self.scale(conv(x))))
        return super().forward(x)


class SeparableConv(nn.Module):
    """Two depthwise 3x3 convolutions, each mixed by a 1x1; the first halves the image's sides."""

    def __init__(
        self, inputs: int, outputs: int, norm: Norm, scale: nn.Module, conv: Conv = conv3x3
    ) -> None:
        super().__init__()
        self.depthwise1 = conv(inputs, inputs, stride=2, groups=inputs)
        self.pointwise1 = nn.Conv2d(inputs, inputs, 1, bias=False)
        self.norm1 = norm(inputs)
        self.depthwise2 = conv(inputs, inputs, groups=inputs)
        self.pointwise2 = nn.Conv2d(inputs, outputs, 1, bias=False)
        self.norm2 = norm(outputs)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.scale(self.pointwise1(self.depthwise1(x)))))
        return F.relu(self.norm2(self.scale(self.pointwise2(self.depthwise2(x)))))


class AttentionHead(PoolHead):
    """DepthFL's exit: a mask over the features, then separable convolutions to the last stage's.

    `channels` are those of the exit's stage and of each stage behind it. The mask is resized to the
    features' size, so that odd sides and single pixels work.
    """

    def __init__(
        self,
        channels: Sequence[int],
        num_classes: int,
        norm: Norm,
        scale: nn.Module,
        conv: Conv = conv3x3,
    ) -> None:
        super().__init__(channels[-1], num_classes)
        first = channels[0]
        self.attention = SeparableConv(first, first, norm, scale, conv)
        self.attention_norm = norm(first)
        self.convs = nn.Sequential(
            *(SeparableConv(*each, norm, scale, conv) for each in pairwise(channels))
        )

    def forward(self, x: Tensor) -> Tensor:
        mask = F.relu(self.attention_norm(self.attention(x)))
        mask = F.interpolate(mask, x.shape[2:], mode="bilinear", align_corners=False)
        return super().forward(self.convs(x * mask.sigmoid()))


def exit_head(
    kind: HeadKind,
    channels: int,
    num_classes: int,
    norm: Norm,
    scale: nn.Module,
    later: Sequence[int] | None = None,
    conv: Conv = conv3x3,
) -> nn.Module:
    """Return an early exit's head; `later` are the channels of the stages behind the exit's.

    A network without `later` has no attention heads. `conv` replaces 3x3 convolutions.
    """
    choices = ("conv", "pool") if later is None else ("conv", "pool", "attention")
    if kind not in choices:
        raise ValueError(f"unknown exit head {kind!r}; choose from {', '.join(choices)}")
    if kind == "attention":
        return AttentionHead((channels, *(later or ())), num_classes, norm, scale, conv)
    if kind == "pool":
        return PoolHead(channels, num_classes)
    return ConvHead(channels, num_classes, norm, scale, conv)
