"""Networks of inverted bottlenecks: blocks that are wider inside than between blocks.

These are MobileNetV2 and EfficientNetV2, in the sizes that FedFA's clients choose from. A block's
inner width is a multiple of its input *in the slice*, which keeps it a part of the full network's.
The stem and the last 1x1 convolution belong to no stage: a single share cuts them too (HeteroFL
cuts everything), a share for each stage does not (in FedFA's Table 4 they have one size).

Blocks that a slice does not keep are absent, and so are all behind its last exit; the others keep
their names. The first block of a stage has no shortcut to stand in for it, so it must be kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, Protocol

import torch.nn.functional as F
from torch import Tensor, nn

from models.candidates import Candidates
from models.families import Features, SlicedNetwork, early_heads, held, register
from models.layers import (
    HeadKind,
    Norm,
    NormKind,
    ScalerKind,
    StepKind,
    choose_norm,
    choose_scaler,
    exit_head,
    give_step,
    initialise,
    stepped,
)
from models.options import share_left_out
from models.slicing import Slice, SliceError, check_stages

StemKind = Literal["cifar", "imagenet"]


def conv_norm(
    inputs: int,
    outputs: int,
    kernel: int,
    stride: int = 1,
    groups: int = 1,
    *,
    activate: bool = True,
    norm: Norm,
    scale: nn.Module,
    activation: type[nn.Module] = nn.SiLU,
) -> nn.Sequential:
    """Return a convolution, a norm and an activation (torchvision's names: `0` and `1`)."""
    layers = nn.Sequential()
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    layers.add_module("0", conv)
    layers.add_module("scale", scale)
    layers.add_module("1", norm(outputs))
    if activate:
        layers.add_module("2", activation())
    return layers


class Conv(Protocol):
    """`conv_norm` with its norm, scaler and activation chosen."""

    def __call__(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        stride: int = 1,
        groups: int = 1,
        *,
        activate: bool = True,
    ) -> nn.Sequential: ...


class SqueezeExcitation(nn.Module):
    """Weights each channel by the mean of all channels."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        weights: Tensor = self.fc2(F.silu(self.fc1(x.mean((2, 3), keepdim=True))))
        return weights.sigmoid() * x


def check_first_blocks(slice: Slice, blocks: Sequence[int]) -> None:
    """Raise `SliceError` for an impossible slice, or for a stage without its first block."""
    check_stages(slice, blocks)
    for stage, kept in enumerate(slice.blocks or ()):
        if 0 not in kept:
            raise SliceError(
                f"stage {stage + 1}: block 0 changes the shape, so it cannot be absent"
            )


@dataclass(frozen=True)
class Stage:
    """Blocks with the same number of output channels; the first block has the stride."""

    expansion: int
    stride: int
    channels: tuple[int, ...]
    """Choices for the stage's channels; the last is the full network's."""
    blocks: tuple[int, ...]
    """Choices for the number of blocks; the last is the full network's."""
    fused: bool = False
    """Widen and filter with one 3x3 convolution, instead of a 1x1 and a depthwise one."""
    squeezes: bool = False
    """Weight the channels (squeeze-and-excitation) through a quarter of the input's channels."""


@dataclass(frozen=True)
class Architecture:
    """The sizes of a network."""

    stem: int
    stages: tuple[Stage, ...]
    final: int
    """Channels of the last 1x1 convolution."""
    activation: type[nn.Module]

    def narrowed(self, by: int) -> Architecture:
        """Return the same network with all channels divided by a number."""
        stages = (
            replace(stage, channels=tuple(each // by for each in stage.channels))
            for stage in self.stages
        )
        return replace(self, stem=self.stem // by, stages=tuple(stages), final=self.final // by)

    @property
    def candidates(self) -> Candidates:
        return Candidates.of_channels(
            [stage.blocks for stage in self.stages], [stage.channels for stage in self.stages]
        )

    @property
    def blocks(self) -> tuple[int, ...]:
        """The number of blocks in each stage of the full network."""
        return tuple(stage.blocks[-1] for stage in self.stages)

    @property
    def units(self) -> list[tuple[int, int]]:
        """The stage and the block of each unit."""
        return [(stage, block) for stage, n in enumerate(self.blocks) for block in range(n)]

    def width(self, stage: int | None) -> int:
        """Return the channels after a stage of the full network, or after the stem."""
        return self.stem if stage is None else self.stages[stage].channels[-1]


class InvertedBottleneck(nn.Module):
    """Widen, filter, optionally weight the channels, narrow; a shortcut if shapes allow."""

    step: Tensor | None

    def __init__(
        self,
        kind: Stage,
        inputs: int,
        outputs: int,
        stride: int,
        residual: bool,
        inner: Conv,
        outer: Conv,
        steps: StepKind = "none",
    ) -> None:
        super().__init__()
        self.residual = residual
        wide = kind.expansion * inputs
        layers: list[nn.Module] = []
        if kind.fused:
            layers.append(inner(inputs, wide, 3, stride))
        else:
            if kind.expansion > 1:
                layers.append(inner(inputs, wide, 1))
            layers.append(inner(wide, wide, 3, stride, groups=wide))
        if kind.squeezes:
            layers.append(SqueezeExcitation(wide, max(1, inputs // 4)))
        self.block = nn.Sequential(*layers, outer(wide, outputs, 1, activate=False))
        give_step(self, "step", steps if residual else "none")

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.block(x)
        return x + stepped(y, self.step) if self.residual else y


class InvertedBottleneckNet(SlicedNetwork):
    """Stem, stages of inverted bottlenecks, a wide 1x1 convolution and a linear classifier."""

    def __init__(
        self,
        architecture: Architecture,
        num_classes: int,
        in_channels: int,
        slice: Slice,
        stem: StemKind = "cifar",
        norm: NormKind = "bn",
        scaler: ScalerKind = "none",
        head: HeadKind = "conv",
        steps: StepKind = "none",
        dropout: float | str = 0.0,
    ) -> None:
        super().__init__()
        if stem not in ("cifar", "imagenet"):
            raise ValueError(f"unknown stem {stem!r}; choose from cifar, imagenet")
        check_first_blocks(slice, architecture.blocks)
        self.architecture, self.slice = architecture, slice
        self.stem: StemKind = stem
        self.norm, self.scaler = choose_norm(norm), scaler
        self.steps: StepKind = steps
        self.units = architecture.units[: slice.exits[-1] if slice.exits else None]
        self.depth = len(self.units)
        self.features = nn.ModuleDict()
        self.features["0"] = self._conv(None)(
            in_channels, self._width(None), 3, stride=1 if stem == "cifar" else 2
        )
        for stage in range(len(architecture.stages)):
            self.features[str(stage + 1)] = nn.ModuleDict(dict(self._blocks(stage)))
        whole = self.units == architecture.units
        make = partial(self._exit, head, num_classes)
        self.exits = early_heads(slice, len(architecture.units), make)
        if whole:
            last = len(architecture.stages) - 1
            wide = slice.channels(architecture.final, None)
            self.features[str(last + 2)] = self._conv(None)(self._width(last), wide, 1)
            left_out = share_left_out("dropout", dropout)
            self.classifier = nn.Sequential(nn.Dropout(left_out), nn.Linear(wide, num_classes))
        self.apply(initialise)

    def enter(self, x: Tensor) -> Features:
        return (self.features["0"](x),)

    def unit(self, number: int) -> nn.Module | None:
        stage, block = self.units[number - 1]
        blocks = self.features[str(stage + 1)]
        assert isinstance(blocks, nn.ModuleDict)
        return held(blocks, block)

    def final_head(self, x: Tensor) -> Tensor:
        x = self.features[str(len(self.architecture.stages) + 1)](x)
        logits: Tensor = self.classifier(x.mean((2, 3)))
        return logits

    def _blocks(self, stage: int) -> Iterator[tuple[str, nn.Module]]:
        """Yield the blocks of a stage that the slice holds, with their numbers."""
        kind = self.architecture.stages[stage]
        kept = range(kind.blocks[-1]) if self.slice.blocks is None else self.slice.blocks[stage]
        for block in sorted(kept):
            if (stage, block) not in self.units:
                continue
            source = stage if block else stage - 1 if stage else None
            inputs, outputs = self._width(source), self._width(stage)
            # A slice has no shortcut that the full network lacks.
            stride = self._stride(stage) if block == 0 else 1
            same = self.architecture.width(source) == self.architecture.width(stage)
            yield (
                str(block),
                InvertedBottleneck(
                    kind,
                    inputs,
                    outputs,
                    stride,
                    residual=stride == 1 and same and inputs == outputs,
                    inner=self._conv(source),
                    outer=self._conv(stage),
                    steps=self.steps,
                ),
            )

    def _stride(self, stage: int) -> int:
        """Return a stage's stride; the CIFAR stem keeps all pixels through the second stage."""
        small = self.stem == "cifar" and stage < 2
        return 1 if small else self.architecture.stages[stage].stride

    def _exit(self, head: HeadKind, num_classes: int, unit: int) -> nn.Module:
        stage, _ = self.units[unit - 1]
        return exit_head(head, self._width(stage), num_classes, self.norm, self._scaler(stage))

    def _conv(self, stage: int | None) -> Conv:
        activation = self.architecture.activation
        scale = self._scaler(stage)
        return partial(conv_norm, norm=self.norm, scale=scale, activation=activation)

    def _width(self, stage: int | None) -> int:
        """Return the channels after a stage of the slice, or after the stem, in no stage."""
        return self.slice.channels(self.architecture.width(stage), stage)

    def _scaler(self, stage: int | None) -> nn.Module:
        return choose_scaler(self.scaler, self.slice.share(stage))


def offer(name: str, architecture: Architecture) -> None:
    """Register a network under a name."""
    register(
        name,
        len(architecture.units),
        stages=architecture.blocks,
        keeps_first=True,
        blocks="features.{stage}.{block}.",
        candidates=architecture.candidates,
    )(partial(InvertedBottleneckNet, architecture))
