"""Blocks of residual networks with torchvision's names, and their shortcuts."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from models.layers import Norm, StepKind, conv3x3, give_step, stepped


@dataclass(frozen=True)
class Channels:
    """Channels of a block: of its shortcut in the full network, and of the slice."""

    full_in: int
    full_out: int
    in_: int
    inner: int
    out: int


class PadShortcut(nn.Module):
    """Option A: subsamples by the stride, and pads new channels with zeros, half on either side.

    A slice keeps the full network's offset, so its channels line up as they do there.
    """

    def __init__(self, channels: Channels, stride: int) -> None:
        super().__init__()
        self.stride = stride
        lead = (channels.full_out - channels.full_in) // 2
        self.padding = (0, 0, 0, 0, lead, channels.out - channels.in_ - lead)

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], self.padding)


def projection(channels: Channels, stride: int, norm: Norm, scale: nn.Module) -> nn.Module:
    """Return option B: a 1x1 convolution and a norm (torchvision's `downsample.0`, `.1`)."""
    conv = nn.Conv2d(channels.in_, channels.out, 1, stride=stride, bias=False)
    layers = nn.Sequential()
    layers.add_module("0", conv)
    layers.add_module("scale", scale)
    layers.add_module("1", norm(channels.out))
    return layers


class SkippedBlock(nn.Module):
    """The shortcut of a skipped block that changes the shape."""

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
        self.conv1 = conv3x3(channels.in_, channels.inner, stride)
        self.bn1 = norm(channels.inner)
        self.conv2 = conv3x3(channels.inner, channels.out)
        self.bn2 = norm(channels.out)
        self.downsample = downsample
        self.scale = scale
        give_step(self, "step", steps)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.scale(self.conv1(x))))
        y = stepped(self.bn2(self.scale(self.conv2(y))), self.step)
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class Bottleneck(nn.Module):
    """A 3x3 convolution between two 1x1 convolutions, with its own number of channels."""

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
        self.conv1 = nn.Conv2d(channels.in_, channels.inner, 1, bias=False)
        self.bn1 = norm(channels.inner)
        self.conv2 = conv3x3(channels.inner, channels.inner, stride)
        self.bn2 = norm(channels.inner)
        self.conv3 = nn.Conv2d(channels.inner, channels.out, 1, bias=False)
        self.bn3 = norm(channels.out)
        self.downsample = downsample
        self.scale = scale
        give_step(self, "step", steps)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.scale(self.conv1(x))))
        y = F.relu(self.bn2(self.scale(self.conv2(y))))
        y = stepped(self.bn3(self.scale(self.conv3(y))), self.step)
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))
