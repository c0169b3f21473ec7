"""Residual networks: ResNet-20/32/44/56/110 for CIFAR, ResNet-18/34 with torchvision's names.

He et al., Deep Residual Learning for Image Recognition. A block that a slice does not keep is
absent: not built, not computed, not sent. Names are the full network's: block 5 of stage 3 stays
`layer3.5` when 3 and 4 are gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from models.families import SlicedNetwork, Walk, going_on, register
from models.layers import (
    HeadKind,
    Norm,
    NormKind,
    ScalerKind,
    StepKind,
    choose_norm,
    choose_scaler,
    conv3x3,
    exit_head,
    give_step,
    initialise,
    stepped,
)
from models.slicing import Slice, check_stages

StemKind = Literal["cifar", "cifar-pool", "imagenet"]
ShortcutKind = Literal["A", "B"]


@dataclass(frozen=True)
class Architecture:
    """The numbers that tell one residual network from another."""

    planes: tuple[int, ...]
    blocks: tuple[int, ...]
    classifier: str

    @property
    def units(self) -> int:
        return sum(self.blocks)

    def unit(self, number: int) -> tuple[int, int]:
        """Return the stage and block of a unit, which are counted from 1 through all stages."""
        stage = 0
        while number > self.blocks[stage]:
            number -= self.blocks[stage]
            stage += 1
        return stage, number - 1


@dataclass(frozen=True)
class Channels:
    """Channels of one block: of the full network, and of the slice."""

    full_in: int
    full_out: int
    in_: int
    out: int


class PadShortcut(nn.Module):
    """Option A: every second pixel, new channels zero, half of them on either side.

    A slice keeps the full network's offset, so its channels meet those they meet there.
    """

    def __init__(self, channels: Channels) -> None:
        super().__init__()
        lead = (channels.full_out - channels.full_in) // 2
        self.padding = (0, 0, 0, 0, lead, channels.out - channels.in_ - lead)

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, ::2, ::2], self.padding)


def projection(channels: Channels, stride: int, norm: Norm, scale: nn.Module) -> nn.Module:
    """Return option B: a 1x1 convolution and a norm (torchvision's `downsample.0`, `.1`)."""
    conv = nn.Conv2d(channels.in_, channels.out, 1, stride=stride, bias=False)
    layers = nn.Sequential()
    layers.add_module("0", conv)
    layers.add_module("scale", scale)
    layers.add_module("1", norm(channels.out))
    return layers


class SkippedBlock(nn.Module):
    """The rest of a skipped block that changes the shape: its shortcut."""

    def __init__(self, downsample: nn.Module) -> None:
        super().__init__()
        self.downsample = downsample

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.downsample(x))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut; a step size may multiply them (NeFL)."""

    step: Tensor | None

    def __init__(
        self,
        channels: Channels,
        stride: int,
        downsample: nn.Module | None,
        norm: Norm,
        scale: nn.Module,
        steps: StepKind = "none",
    ) -> None:
        super().__init__()
        self.conv1 = conv3x3(channels.in_, channels.out, stride)
        self.bn1 = norm(channels.out)
        self.conv2 = conv3x3(channels.out, channels.out)
        self.bn2 = norm(channels.out)
        self.downsample = downsample
        self.scale = scale
        give_step(self, "step", steps)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.scale(self.conv1(x))))
        y = stepped(self.bn2(self.scale(self.conv2(y))), self.step)
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(SlicedNetwork):
    """Stem, stages of basic blocks, and a linear classifier; a head after each early exit."""

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
        self.depth = slice.exits[-1] if slice.exits else architecture.units
        self._build_stem(stem, in_channels)
        for stage in range(len(architecture.blocks)):
            setattr(self, f"layer{stage + 1}", nn.ModuleDict(dict(self._blocks(stage))))
        self.exits = nn.ModuleDict(
            {str(unit): self._exit(head, unit, num_classes) for unit in self._early_exits()}
        )
        if self.depth == architecture.units:
            last = len(architecture.planes) - 1
            setattr(self, architecture.classifier, nn.Linear(self._width(last), num_classes))
        self.apply(initialise)

    def walk(self, x: Tensor) -> Walk:
        x = self.pool(F.relu(self.bn1(self.scale(self.conv1(x)))))
        for unit in range(1, self.depth + 1):
            stage, block = self.architecture.unit(unit)
            blocks: nn.ModuleDict = getattr(self, f"layer{stage + 1}")
            if str(block) in blocks:
                x = blocks[str(block)](x)
            if str(unit) in self.exits:
                x = going_on(x, (yield self.exits[str(unit)](x)))
        if self.depth == self.architecture.units:
            yield getattr(self, self.architecture.classifier)(x.mean((2, 3)))

    def _build_stem(self, stem: StemKind, in_channels: int) -> None:
        if stem not in ("cifar", "cifar-pool", "imagenet"):
            raise ValueError(f"unknown stem {stem!r}; choose from cifar, cifar-pool, imagenet")
        width = self._width(0)
        if stem == "imagenet":
            self.conv1 = nn.Conv2d(in_channels, width, 7, stride=2, padding=3, bias=False)
        else:
            self.conv1 = conv3x3(in_channels, width)
        self.bn1 = self.norm(width)
        self.pool = nn.Identity() if stem == "cifar" else nn.MaxPool2d(3, stride=2, padding=1)
        self.scale = self._scaler(0)

    def _blocks(self, stage: int) -> Iterator[tuple[str, nn.Module]]:
        """Return the blocks of a stage that the slice holds, under their numbers."""
        planes = self.architecture.planes
        before = sum(self.architecture.blocks[:stage])
        for block in range(min(self.architecture.blocks[stage], self.depth - before)):
            source = stage - 1 if block == 0 and stage > 0 else stage
            channels = Channels(
                planes[source], planes[stage], self._width(source), self._width(stage)
            )
            stride = 2 if source != stage else 1
            downsample = self._shortcut(stage, channels) if source != stage else None
            if self.slice.blocks is None or block in self.slice.blocks[stage]:
                scale = self._scaler(stage)
                kept = BasicBlock(channels, stride, downsample, self.norm, scale, self.steps)
                yield str(block), kept
            elif downsample is not None:
                yield str(block), SkippedBlock(downsample)

    def _shortcut(self, stage: int, channels: Channels) -> nn.Module:
        if self.shortcut not in ("A", "B"):
            raise ValueError(f"unknown shortcut {self.shortcut!r}; choose from A, B")
        if self.shortcut == "A":
            return PadShortcut(channels)
        return projection(channels, 2, self.norm, self._scaler(stage))

    def _early_exits(self) -> list[int]:
        return [unit for unit in self.slice.exits or () if unit != self.architecture.units]

    def _exit(self, head: HeadKind, unit: int, num_classes: int) -> nn.Module:
        stage, _ = self.architecture.unit(unit)
        width, *later = (self._width(each) for each in range(stage, len(self.architecture.planes)))
        return exit_head(head, width, num_classes, self.norm, self._scaler(stage), later)

    def _width(self, stage: int) -> int:
        return self.slice.channels(self.architecture.planes[stage], stage)

    def _scaler(self, stage: int) -> nn.Module:
        return choose_scaler(self.scaler, self.slice.share(stage))


def _register(name: str, architecture: Architecture) -> None:
    register(name, architecture.units)(partial(ResNet, architecture))


for _depth in (20, 32, 44, 56, 110):
    _register(f"resnet{_depth}", Architecture((16, 32, 64), ((_depth - 2) // 6,) * 3, "linear"))
for _depth, _blocks in {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}.items():
    _register(f"resnet{_depth}", Architecture((64, 128, 256, 512), _blocks, "fc"))
