"""Residual networks: for CIFAR, and ResNet-18/34 and Wide-ResNet-101-2 with torchvision's names.

He et al., Deep Residual Learning for Image Recognition; Zagoruyko and Komodakis, Wide Residual
Networks. Blocks that a slice does not keep are absent: not built, not computed, not sent. Names are
the full network's: block 5 of stage 3 stays `layer3.5` when 3 and 4 are gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from models.families import Features, SlicedNetwork, early_heads, held, register
from models.layers import (
    HeadKind,
    NormKind,
    ScalerKind,
    StepKind,
    choose_norm,
    choose_scaler,
    conv3x3,
    exit_head,
    initialise,
)
from models.residual_blocks import (
    BasicBlock,
    Bottleneck,
    Channels,
    PadShortcut,
    SkippedBlock,
    projection,
)
from models.slicing import Slice, check_stages

StemKind = Literal["cifar", "cifar-pool", "imagenet"]
ShortcutKind = Literal["A", "B"]


@dataclass(frozen=True)
class Architecture:
    """The sizes of a residual network, most of them per stage."""

    block: type[BasicBlock | Bottleneck]
    stem: int
    inner: tuple[int, ...]
    """Channels between a block's convolutions."""
    outputs: tuple[int, ...]
    blocks: tuple[int, ...]
    classifier: str

    @property
    def units(self) -> int:
        return sum(self.blocks)

    def unit(self, number: int) -> tuple[int, int]:
        """Return the stage and block of a unit; units are counted from 1 through all stages."""
        stage = 0
        while number > self.blocks[stage]:
            number -= self.blocks[stage]
            stage += 1
        return stage, number - 1


class ResNet(SlicedNetwork):
    """Stem, stages of blocks, and a linear classifier; a head after each early exit."""

    def __init__(
        self,
        architecture: Architecture,
        num_classes: int,
        in_channels: int,
        slice: Slice,
        stem: StemKind = "cifar",
        shortcut: ShortcutKind = "B",
        norm: NormKind = "bn",
        scaler: ScalerKind = "none",
        head: HeadKind = "conv",
        steps: StepKind = "none",
    ) -> None:
        super().__init__()
        check_stages(slice, architecture.blocks)
        self.architecture, self.slice = architecture, slice
        self.norm, self.scaler, self.shortcut = choose_norm(norm), scaler, shortcut
        self.steps: StepKind = steps
        self.depth = slice.depth(architecture.units)
        self._build_stem(stem, in_channels)
        for stage in range(len(architecture.blocks)):
            setattr(self, f"layer{stage + 1}", nn.ModuleDict(dict(self._blocks(stage))))
        make = partial(self._exit, head, num_classes)
        self.exits = early_heads(slice, architecture.units, make)
        if self.depth == architecture.units:
            last = len(architecture.outputs) - 1
            setattr(self, architecture.classifier, nn.Linear(self._width(last), num_classes))
        self.apply(initialise)

    def enter(self, x: Tensor) -> Features:
        return (self.pool(F.relu(self.bn1(self.scale(self.conv1(x))))),)

    def unit(self, number: int) -> nn.Module | None:
        stage, block = self.architecture.unit(number)
        blocks: nn.ModuleDict = getattr(self, f"layer{stage + 1}")
        return held(blocks, block)

    def final_head(self, x: Tensor) -> Tensor:
        logits: Tensor = getattr(self, self.architecture.classifier)(x.mean((2, 3)))
        return logits

    def _build_stem(self, stem: StemKind, in_channels: int) -> None:
        if stem not in ("cifar", "cifar-pool", "imagenet"):
            raise ValueError(f"unknown stem {stem!r}; choose from cifar, cifar-pool, imagenet")
        width = self.slice.channels(self.architecture.stem)
        if stem == "imagenet":
            self.conv1 = nn.Conv2d(in_channels, width, 7, stride=2, padding=3, bias=False)
        else:
            self.conv1 = conv3x3(in_channels, width)
        self.bn1 = self.norm(width)
        self.pool = nn.Identity() if stem == "cifar" else nn.MaxPool2d(3, stride=2, padding=1)
        self.scale = self._scaler(0)

    def _blocks(self, stage: int) -> Iterator[tuple[str, nn.Module]]:
        """Yield the blocks of a stage that the slice holds, with their numbers."""
        before = sum(self.architecture.blocks[:stage])
        for block in range(min(self.architecture.blocks[stage], self.depth - before)):
            channels = self._channels(stage, block)
            stride = 2 if stage > 0 and block == 0 else 1
            changes = stride > 1 or channels.full_in != channels.full_out
            downsample = self._shortcut(stage, channels, stride) if changes else None
            if self.slice.blocks is None or block in self.slice.blocks[stage]:
                scale, build = self._scaler(stage), self.architecture.block
                yield str(block), build(channels, stride, downsample, self.norm, scale, self.steps)
            # A skipped block that changes the shape still needs its shortcut.
            elif downsample is not None:
                yield str(block), SkippedBlock(downsample)

    def _channels(self, stage: int, block: int) -> Channels:
        """Return a block's channels; a stage's first block reads the previous stage's output."""
        outputs = self.architecture.outputs
        source = stage if block > 0 else max(stage - 1, 0)
        full_in = self.architecture.stem if stage == block == 0 else outputs[source]
        return Channels(
            full_in=full_in,
            full_out=outputs[stage],
            in_=self.slice.channels(full_in, source),
            inner=self.slice.channels(self.architecture.inner[stage], stage),
            out=self._width(stage),
        )

    def _shortcut(self, stage: int, channels: Channels, stride: int) -> nn.Module:
        if self.shortcut not in ("A", "B"):
            raise ValueError(f"unknown shortcut {self.shortcut!r}; choose from A, B")
        if self.shortcut == "A":
            return PadShortcut(channels, stride)
        return projection(channels, stride, self.norm, self._scaler(stage))

    def _exit(self, head: HeadKind, num_classes: int, unit: int) -> nn.Module:
        stage, _ = self.architecture.unit(unit)
        width, *later = (self._width(each) for each in range(stage, len(self.architecture.outputs)))
        return exit_head(head, width, num_classes, self.norm, self._scaler(stage), later)

    def _width(self, stage: int) -> int:
        """Return the channels after a stage of the slice."""
        return self.slice.channels(self.architecture.outputs[stage], stage)

    def _scaler(self, stage: int) -> nn.Module:
        return choose_scaler(self.scaler, self.slice.share(stage))


def _basic(planes: tuple[int, ...], blocks: tuple[int, ...], classifier: str) -> Architecture:
    return Architecture(BasicBlock, planes[0], planes, planes, blocks, classifier)


ARCHITECTURES = {
    **{f"resnet{6 * n + 2}": _basic((16, 32, 64), (n, n, n), "linear") for n in (3, 5, 7, 9, 18)},
    "resnet18-mini": _basic((16, 32, 64, 128), (2, 2, 2, 2), "fc"),
    "resnet18": _basic((64, 128, 256, 512), (2, 2, 2, 2), "fc"),
    "resnet34": _basic((64, 128, 256, 512), (3, 4, 6, 3), "fc"),
    "wide_resnet101_2": Architecture(
        Bottleneck,
        stem=64,
        inner=(128, 256, 512, 1024),
        outputs=(256, 512, 1024, 2048),
        blocks=(3, 4, 23, 3),
        classifier="fc",
    ),
}
for _name, _architecture in ARCHITECTURES.items():
    _made = partial(ResNet, _architecture)
    register(_name, _architecture.units, stages=_architecture.blocks)(_made)
