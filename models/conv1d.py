"""Residual networks for series: rows of a table, or windows of sensor measurements.

They are pre-activation networks (`models/preresnet.py`) whose kernels extend in time only. A series
is treated as an image one pixel high, so that norms, exits and methods are those of images.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torch import Tensor

from models.families import Features, register
from models.layers import HeadKind, NormKind, ScalerKind, StepKind
from models.options import whole_number
from models.preresnet import Architecture, PreResNet
from models.slicing import Slice


class SeriesNetwork(PreResNet):
    """A pre-activation network that reads [batch, channels, length], for any length from 1 on."""

    def __init__(
        self,
        architecture: Architecture,
        num_classes: int,
        in_channels: int,
        slice: Slice,
        kernel: int | None = None,
        norm: NormKind = "bn",
        scaler: ScalerKind = "none",
        head: HeadKind = "conv",
        steps: StepKind = "none",
    ) -> None:
        if kernel is not None:
            architecture = replace(architecture, kernel=(1, _odd(kernel)))
        super().__init__(architecture, num_classes, in_channels, slice, norm, scaler, head, steps)

    def enter(self, x: Tensor) -> Features:
        return super().enter(x.unsqueeze(2))


def _odd(kernel: int) -> int:
    found = whole_number("kernel", kernel)
    if found % 2 == 0:
        raise ValueError(f"kernel is {kernel}: expected an odd number of steps, such as 5")
    return found


ARCHITECTURES = {
    "conv1d": Architecture(
        stem=16,
        channels=((16, 24, 32), (32, 48, 64), (64, 96, 128)),
        blocks=((2, 3),) * 3,
        kernel=(1, 5),
    ),
    "conv1d-micro": Architecture(
        stem=8,
        channels=((8, 12), (16, 24), (32, 48)),
        blocks=((2, 3),) * 3,
        kernel=(1, 3),
    ),
}
for _name, _architecture in ARCHITECTURES.items():
    register(
        _name,
        len(_architecture.units),
        reads="series",
        stages=_architecture.stages,
        candidates=_architecture.candidates,
    )(partial(SeriesNetwork, _architecture))
