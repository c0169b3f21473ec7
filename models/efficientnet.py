"""EfficientNet-B4 with torchvision's names, so that its pre-trained weights load.

Tan and Le, EfficientNet: Rethinking Model Scaling for Convolutional Neural Networks. Torchvision
itself is not needed. Blocks that a slice does not keep are absent, and so are all behind its last
exit; the others keep their names.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from models.families import Features, SlicedNetwork, early_heads, held, register
from models.inverted_bottlenecks import Conv, SqueezeExcitation, check_first_blocks, conv_norm
from models.layers import (
    HeadKind,
    NormKind,
    ScalerKind,
    choose_norm,
    choose_scaler,
    exit_head,
    initialise,
)
from models.slicing import Slice


@dataclass(frozen=True)
class Stage:
    """Blocks with the same number of output channels; the first block has the stride."""

    expansion: int
    kernel: int
    stride: int
    channels: int
    blocks: int


STEM = 48
STAGES = (
    Stage(1, 3, 1, 24, 2),
    Stage(6, 3, 2, 32, 4),
    Stage(6, 5, 2, 56, 4),
    Stage(6, 3, 2, 112, 6),
    Stage(6, 5, 1, 160, 6),
    Stage(6, 5, 2, 272, 8),
    Stage(6, 3, 1, 448, 2),
)
FINAL = 1792
UNITS = [(stage, block) for stage, kind in enumerate(STAGES) for block in range(kind.blocks)]
DROPOUT = 0.4
DROPPED_BRANCHES = 0.2
"""Probability that training skips the last block; it rises linearly from 0 at the first."""


@dataclass(frozen=True)
class Channels:
    """Channels of one block."""

    in_: int
    expanded: int
    squeezed: int
    out: int


class MBConv(nn.Module):
    """Inverted bottleneck: expand, filter each channel, weight the channels, project."""

    def __init__(
        self, conv: Conv, kind: Stage, channels: Channels, residual: bool, dropped: float
    ) -> None:
        super().__init__()
        self.residual, self.dropped = residual, dropped
        inner = channels.expanded
        layers: list[nn.Module] = [
            conv(inner, inner, kind.kernel, 1 if residual else kind.stride, groups=inner),
            SqueezeExcitation(inner, channels.squeezed),
            conv(inner, channels.out, 1, activate=False),
        ]
        if kind.expansion > 1:
            layers.insert(0, conv(channels.in_, inner, 1))
        self.block = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.block(x)
        if not self.residual:
            return y
        # Stochastic depth: the kept samples are scaled so that the mean stays the same.
        if self.training and self.dropped:
            kept = torch.empty(len(y), 1, 1, 1, device=y.device).bernoulli_(1 - self.dropped)
            y = y * (kept / (1 - self.dropped))
        return x + y


class EfficientNet(SlicedNetwork):
    """Stem, stages of inverted bottlenecks, a wide 1x1 convolution and a linear classifier."""

    def __init__(
        self,
        num_classes: int,
        in_channels: int,
        slice: Slice,
        norm: NormKind = "bn",
        scaler: ScalerKind = "none",
        head: HeadKind = "conv",
    ) -> None:
        super().__init__()
        check_first_blocks(slice, [kind.blocks for kind in STAGES])
        self.slice, self.norm, self.scaler = slice, choose_norm(norm), scaler
        self.depth = slice.depth(len(UNITS))
        stem = self._conv(0)(in_channels, self._width(-1), 3, stride=2)
        self.features = nn.ModuleDict({"0": stem})
        for stage in range(len(STAGES)):
            self.features[str(stage + 1)] = nn.ModuleDict(dict(self._blocks(stage)))
        self.exits = early_heads(slice, len(UNITS), partial(self._exit, head, num_classes))
        if self.depth == len(UNITS):
            last = len(STAGES) - 1
            wide = slice.channels(FINAL, last)
            self.features[str(last + 2)] = self._conv(last)(self._width(last), wide, 1)
            self.classifier = nn.Sequential(nn.Dropout(DROPOUT), nn.Linear(wide, num_classes))
        self.apply(initialise)

    def enter(self, x: Tensor) -> Features:
        return (self.features["0"](x),)

    def unit(self, number: int) -> nn.Module | None:
        stage, block = UNITS[number - 1]
        blocks = self.features[str(stage + 1)]
        assert isinstance(blocks, nn.ModuleDict)
        return held(blocks, block)

    def final_head(self, x: Tensor) -> Tensor:
        x = self.features[str(len(STAGES) + 1)](x)
        logits: Tensor = self.classifier(x.mean((2, 3)))
        return logits

    def _blocks(self, stage: int) -> Iterator[tuple[str, nn.Module]]:
        """Yield the blocks of a stage that the slice holds, with their numbers."""
        kind = STAGES[stage]
        for block in range(kind.blocks):
            unit = UNITS.index((stage, block))
            absent = self.slice.blocks is not None and block not in self.slice.blocks[stage]
            if unit >= self.depth or absent:
                continue
            source = stage if block else stage - 1
            full = _full_width(source)
            channels = Channels(
                self._width(source),
                self.slice.channels(full * kind.expansion, stage),
                self.slice.channels(full // 4, stage),
                self._width(stage),
            )
            dropped = DROPPED_BRANCHES * unit / len(UNITS)
            yield str(block), MBConv(self._conv(stage), kind, channels, block > 0, dropped)

    def _exit(self, head: HeadKind, num_classes: int, unit: int) -> nn.Module:
        stage, _ = UNITS[unit - 1]
        return exit_head(head, self._width(stage), num_classes, self.norm, self._scaler(stage))

    def _conv(self, stage: int) -> Conv:
        return partial(conv_norm, norm=self.norm, scale=self._scaler(stage))

    def _width(self, stage: int) -> int:
        """Return the channels after a stage, or after the stem, which shares the first's width."""
        return self.slice.channels(_full_width(stage), max(stage, 0))

    def _scaler(self, stage: int) -> nn.Module:
        return choose_scaler(self.scaler, self.slice.share(stage))


def _full_width(stage: int) -> int:
    return STEM if stage < 0 else STAGES[stage].channels


register(
    "efficientnet_b4",
    len(UNITS),
    stages=tuple(stage.blocks for stage in STAGES),
    keeps_first=True,
    blocks="features.{stage}.{block}.",
)(EfficientNet)
