"""Pre-activation residual networks, in the sizes that FedFA's clients choose from.

He et al., Identity Mappings in Deep Residual Networks; Park and Joe-Wong, FedFA, Tables 4 and 5. A
norm and a ReLU come before each convolution, so that the sum of shortcuts and branches stays
untouched; where a block changes the shape, its shortcut is a 1x1 convolution of the activation.

Blocks that a slice does not keep are absent, and the others keep their names. The stem belongs to
no stage: a slice with a share for each stage has all of it, as in Table 4, where it is 64 wide. In
the full network the first stage is wider than the stem, so it has a projection in every slice, even
where Table 4's smallest network, of 64 channels, would not need one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from models.candidates import Candidates
from models.families import Features, SlicedNetwork, early_heads, held, register
from models.layers import (
    Conv,
    HeadKind,
    Norm,
    NormKind,
    ScalerKind,
    StepKind,
    choose_norm,
    choose_scaler,
    convolution,
    exit_head,
    give_step,
    initialise,
    stepped,
)
from models.slicing import Slice, check_stages


@dataclass(frozen=True)
class Architecture:
    """The sizes of a network; the last choice of each stage is the full network's."""

    stem: int
    channels: tuple[tuple[int, ...], ...]
    """Choices for each stage's channels."""
    blocks: tuple[tuple[int, ...], ...]
    """Choices for each stage's number of blocks."""
    stem_stride: int = 1
    kernel: tuple[int, int] = (3, 3)
    """Kernel of all convolutions except projections."""

    @property
    def conv(self) -> Conv:
        return partial(convolution, self.kernel)

    @property
    def candidates(self) -> Candidates:
        return Candidates.of_channels(self.blocks, self.channels)

    @property
    def stages(self) -> tuple[int, ...]:
        """The number of blocks in each stage of the full network."""
        return tuple(choices[-1] for choices in self.blocks)

    @property
    def units(self) -> list[tuple[int, int]]:
        """The stage and the block of each unit."""
        return [(stage, block) for stage, n in enumerate(self.stages) for block in range(n)]


class Activation(nn.Module):
    """A norm and a ReLU, which come before a convolution."""

    def __init__(self, channels: int, norm: Norm, scale: nn.Module) -> None:
        super().__init__()
        self.scale = scale
        self.norm = norm(channels)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.scale(x)))


class SkippedBlock(nn.Module):
    """The shortcut of a skipped block that changes the shape."""

    def __init__(self, act1: Activation, downsample: nn.Conv2d) -> None:
        super().__init__()
        self.act1, self.downsample = act1, downsample

    def forward(self, x: Tensor) -> Tensor:
        shortcut: Tensor = self.downsample(self.act1(x))
        return shortcut


class PreActivationBlock(nn.Module):
    """Two convolutions beside a shortcut; a step size may multiply them (NeFL)."""

    step: Tensor | None

    def __init__(
        self,
        act1: Activation,
        conv1: nn.Conv2d,
        act2: Activation,
        conv2: nn.Conv2d,
        downsample: nn.Conv2d | None,
        steps: StepKind = "none",
    ) -> None:
        super().__init__()
        self.act1, self.conv1, self.act2, self.conv2 = act1, conv1, act2, conv2
        self.downsample = downsample
        give_step(self, "step", steps)

    def forward(self, x: Tensor) -> Tensor:
        y = self.act1(x)
        shortcut = x if self.downsample is None else self.downsample(y)
        y = self.conv2(self.act2(self.conv1(y)))
        return stepped(y, self.step) + shortcut


class PreResNet(SlicedNetwork):
    """Stem, stages of blocks, a last norm and a linear classifier; a head after each early exit."""

    def __init__(
        self,
        architecture: Architecture,
        num_classes: int,
        in_channels: int,
        slice: Slice,
        norm: NormKind = "bn",
        scaler: ScalerKind = "none",
        head: HeadKind = "conv",
        steps: StepKind = "none",
    ) -> None:
        super().__init__()
        check_stages(slice, architecture.stages)
        self.architecture, self.slice = architecture, slice
        self.norm, self.scaler = choose_norm(norm), scaler
        self.steps: StepKind = steps
        self.units = architecture.units[: slice.exits[-1] if slice.exits else None]
        self.depth = len(self.units)
        self.conv1 = architecture.conv(in_channels, self._width(None), architecture.stem_stride)
        for stage in range(len(architecture.stages)):
            setattr(self, f"layer{stage + 1}", nn.ModuleDict(dict(self._blocks(stage))))
        whole = self.units == architecture.units
        make = partial(self._exit, head, num_classes)
        self.exits = early_heads(slice, len(architecture.units), make)
        if whole:
            last = len(architecture.stages) - 1
            self.act = self._activation(last)
            self.fc = nn.Linear(self._width(last), num_classes)
        self.apply(initialise)

    def enter(self, x: Tensor) -> Features:
        return (self.conv1(x),)

    def unit(self, number: int) -> nn.Module | None:
        stage, block = self.units[number - 1]
        blocks: nn.ModuleDict = getattr(self, f"layer{stage + 1}")
        return held(blocks, block)

    def final_head(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.act(x).mean((2, 3)))
        return logits

    def _blocks(self, stage: int) -> Iterator[tuple[str, nn.Module]]:
        """Yield the blocks of a stage that the slice holds, with their numbers."""
        conv = self.architecture.conv
        for block in range(self.architecture.stages[stage]):
            if (stage, block) not in self.units:
                return
            source = stage if block > 0 else stage - 1 if stage > 0 else None
            inputs, outputs = self._width(source), self._width(stage)
            stride = 2 if stage > 0 and block == 0 else 1
            downsample = None
            if block == 0:
                downsample = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
            if self.slice.blocks is None or block in self.slice.blocks[stage]:
                yield (
                    str(block),
                    PreActivationBlock(
                        self._activation(source),
                        conv(inputs, outputs, stride),
                        self._activation(stage),
                        conv(outputs, outputs),
                        downsample,
                        self.steps,
                    ),
                )
            # A skipped block that changes the shape still needs its projection.
            elif downsample is not None:
                yield str(block), SkippedBlock(self._activation(source), downsample)

    def _exit(self, head: HeadKind, num_classes: int, unit: int) -> nn.Module:
        stage, _ = self.units[unit - 1]
        width, *later = (self._width(each) for each in range(stage, len(self.architecture.stages)))
        scale, conv = self._scaler(stage), self.architecture.conv
        layers = nn.Sequential()
        layers.add_module("act", self._activation(stage))
        layers.add_module(
            "head", exit_head(head, width, num_classes, self.norm, scale, later, conv)
        )
        return layers

    def _activation(self, stage: int | None) -> Activation:
        return Activation(self._width(stage), self.norm, self._scaler(stage))

    def _width(self, stage: int | None) -> int:
        """Return the channels after a stage of the slice, or after the stem, in no stage."""
        full = self.architecture.stem if stage is None else self.architecture.channels[stage][-1]
        return self.slice.channels(full, stage)

    def _scaler(self, stage: int | None) -> nn.Module:
        return choose_scaler(self.scaler, self.slice.share(stage))


ARCHITECTURES = {
    "preresnet": Architecture(
        stem=64,
        channels=(
            (64, 72, 80, 88),
            (128, 144, 160, 176),
            (256, 288, 320, 352),
            (512, 576, 640, 704),
        ),
        blocks=((3, 4, 5, 6),) * 4,
    ),
    "preresnet-mini": Architecture(
        stem=16,
        channels=((16, 18, 20, 22), (32, 36, 40, 44), (64, 72, 80, 88)),
        blocks=((2, 3, 4),) * 3,
    ),
    "preresnet-micro": Architecture(
        stem=8,
        channels=((8, 12), (16, 24), (32, 48)),
        blocks=((2, 3),) * 3,
        stem_stride=2,
    ),
}
for _name, _architecture in ARCHITECTURES.items():
    register(
        _name,
        len(_architecture.units),
        stages=_architecture.stages,
        candidates=_architecture.candidates,
    )(partial(PreResNet, _architecture))
