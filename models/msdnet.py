"""MSDNet with 24 layers for CIFAR: dense layers at three scales, exits on the coarsest one.

Huang et al., Multi-Scale Dense Networks for Resource Efficient Image Classification. After each
third of the layers the finest scale ends and the channels are halved. Each layer at each scale
reads the concatenated outputs of all earlier layers at its scale: a slice cuts every such part.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.families import Features, SlicedNetwork, register
from models.layers import (
    Norm,
    NormKind,
    PoolHead,
    ScalerKind,
    choose_norm,
    choose_scaler,
    initialise,
)
from models.slicing import Slice, SliceError, declare_parts

LAYERS = 24
FACTORS = (1, 2, 4)
"""Factor of each scale's channels and of its bottlenecks' width, the finest scale first."""
SCALES = range(len(FACTORS))
INITIAL, GROWTH, HEAD = 16, 6, 128
"""Channels of the finest scale's stem and layers, and of the heads. A slice cuts these; the other
scales have multiples of them."""

Parts = tuple[int, ...]
"""The channels of each concatenated part of a feature map."""


def finest(layer: int) -> int:
    """Return the finest scale that a layer computes."""
    return max(0, layer - 1) * len(FACTORS) // LAYERS


def reads_finer(layer: int, scale: int) -> bool:
    """Return whether there is a finer scale before this layer."""
    return scale > finest(layer - 1)


def halves(layer: int) -> bool:
    """Return whether a scale has ended before this layer, which then halves the channels."""
    return finest(layer) > finest(layer - 1)


def grown(layer: int, scale: int, parts: Parts, growth: int) -> Parts:
    """Return the parts after a layer: new ones come from the finer scale and from its own."""
    new = growth * FACTORS[scale]
    return (*parts, new // 2, new // 2) if reads_finer(layer, scale) else (*parts, new)


def halved(scale: int, parts: Parts) -> int:
    """Return about half of the channels, as a multiple of the scale's factor like all parts."""
    return sum(parts) // FACTORS[scale] // 2 * FACTORS[scale]


def lag(scale: int) -> int:
    """Return the number of layers by which a scale lags behind the coarsest at an exit."""
    return SCALES[-1] - scale


class ConvNorm(nn.Module):
    """Convolution, norm and ReLU on concatenated parts."""

    def __init__(
        self,
        parts: Parts,
        outputs: int,
        kernel: int,
        stride: int = 1,
        *,
        norm: Norm,
        scale: nn.Module,
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(
            sum(parts), outputs, kernel, stride=stride, padding=kernel // 2, bias=False
        )
        declare_parts(self.conv, "weight", 1, parts)
        self.scale, self.norm = scale, norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.scale(self.conv(x))))


class Conv(Protocol):
    """Makes a `ConvNorm` with a chosen norm and scaler."""

    def __call__(self, parts: Parts, outputs: int, kernel: int, stride: int = 1) -> ConvNorm: ...


def bottleneck(conv: Conv, parts: Parts, outputs: int, factor: int, stride: int) -> nn.Module:
    """Return a 1x1 convolution to few channels, followed by the 3x3 one."""
    inner = min(sum(parts), factor * outputs)
    return nn.Sequential(conv(parts, inner, 1), conv((inner,), outputs, 3, stride))


class ScaleLayer(nn.Module):
    """One layer at one scale: adds new features to the existing ones, and may halve them."""

    def __init__(
        self, conv: Conv, layer: int, scale: int, before: Sequence[Parts], growth: int
    ) -> None:
        super().__init__()
        parts = grown(layer, scale, before[scale], growth)
        self.down: nn.Module | None = None
        if reads_finer(layer, scale):
            self.down = bottleneck(conv, before[scale - 1], parts[-2], FACTORS[scale - 1], stride=2)
        self.normal = bottleneck(conv, before[scale], parts[-1], FACTORS[scale], stride=1)
        self.halve = conv(parts, halved(scale, parts), 1) if halves(layer) else None

    def forward(self, x: Tensor, finer: Tensor | None) -> Tensor:
        new = [] if self.down is None else [self.down(finer)]
        x = torch.cat([x, *new, self.normal(x)], 1)
        return x if self.halve is None else self.halve(x)


class Head(PoolHead):
    """MSDNet's classifier: two strided convolutions, then pool and linear."""

    def __init__(self, conv: Conv, parts: Parts, channels: int, num_classes: int) -> None:
        super().__init__(channels, num_classes)
        self.convs = nn.Sequential(
            conv(parts, channels, 3, stride=2), conv((channels,), channels, 3, stride=2)
        )

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.convs(x))


class MSDNet(SlicedNetwork):
    """Stem, layers of up to three scales, and a head after each exit.

    Finer scales are built and computed one or two layers behind the coarsest, since no exit reads
    more of them. So the layers that run up to an exit are those of a slice that ends there.
    """

    def __init__(
        self,
        num_classes: int,
        in_channels: int,
        slice: Slice,
        norm: NormKind = "bn",
        scaler: ScalerKind = "none",
    ) -> None:
        super().__init__()
        _check(slice)
        self.depth = slice.depth(LAYERS)
        chosen_norm, scale_by = choose_norm(norm), choose_scaler(scaler, slice.share())
        conv: Conv = partial(ConvNorm, norm=chosen_norm, scale=scale_by)
        head = partial(Head, conv, channels=slice.channels(HEAD), num_classes=num_classes)
        growth = slice.channels(GROWTH)

        widths = [slice.channels(INITIAL) * factor for factor in FACTORS]
        self.stem = nn.ModuleList([conv((in_channels,), widths[0], 3)])
        self.stem.extend(conv((a,), b, 3, stride=2) for a, b in pairwise(widths))
        self.layers, self.exits = nn.ModuleDict(), nn.ModuleDict()
        parts: list[Parts] = [(width,) for width in widths]
        for layer in range(1, self.depth + 1):
            before = tuple(parts)
            for scale in SCALES[finest(layer) :]:
                if layer <= self.depth - lag(scale):
                    held = ScaleLayer(conv, layer, scale, before, growth)
                    self.layers[_name(layer, scale)] = held
                parts[scale] = grown(layer, scale, before[scale], growth)
                if halves(layer):
                    parts[scale] = (halved(scale, parts[scale]),)
            if layer in slice.early_exits(LAYERS):
                self.exits[str(layer)] = head(parts[-1])
        self.classifier = head(parts[-1]) if self.depth == LAYERS else None
        self.apply(initialise)

    def enter(self, x: Tensor) -> Features:
        """Return the features of each scale, the coarsest last."""
        scales = []
        for conv in self.stem:
            x = conv(x)
            scales.append(x)
        return tuple(scales)

    def run_unit(self, number: int, features: Features) -> Features:
        scales = list(features)
        for scale in SCALES:
            name = _name(number - lag(scale), scale)
            if name in self.layers:
                finer = scales[scale - 1] if scale else None
                scales[scale] = self.layers[name](scales[scale], finer)
        return tuple(scales)

    def final_head(self, x: Tensor) -> Tensor:
        assert self.classifier is not None  # the slice has full depth
        logits: Tensor = self.classifier(x)
        return logits


def _name(layer: int, scale: int) -> str:
    return f"{layer}_{scale}"


def _check(slice: Slice) -> None:
    if isinstance(slice.width, tuple):
        raise SliceError(f"width {slice.width}: MSDNet has no stages, expected one share")
    if slice.blocks is not None:
        raise SliceError(f"blocks {slice.blocks}: MSDNet has none, each layer reads all before it")


register("msdnet24", LAYERS, own_exits=(15, 18, 21))(MSDNet)
