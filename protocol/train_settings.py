"""Settings of local training: the numbers that the server sends with a slice."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from data.ranges import ROUNDS, SAMPLES, Range

DeviceKind = Literal["auto", "cpu", "cuda", "mps"]
PrecisionKind = Literal["auto", "fp32", "bf16", "fp16"]
OptimizerKind = Literal["sgd", "adamw"]
ScheduleKind = Literal["constant", "step", "cosine"]
ChannelsLastKind = Literal["auto", "on", "off"]
StatisticsKind = Literal["own", "batch"]


@dataclass(frozen=True)
class TrainSettings:
    """Local training: equal settings, data and seed give equal weights."""

    epochs: Annotated[int, SAMPLES] = 5
    steps: Annotated[int | None, SAMPLES] = None
    """Steps per round, over the data again and again; default (None): by the epochs."""
    batch_size: Annotated[int, SAMPLES] = 16
    optimizer: OptimizerKind = "sgd"
    """`adamw` is usual for fine-tuning transformers; momentum and nesterov apply to SGD only."""
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    nesterov: bool = False
    schedule: ScheduleKind = "cosine"
    """Change of the learning rate between rounds; within a round it is constant after the
    warm-up."""
    milestones: Annotated[tuple[int, ...], ROUNDS] = ()
    """Rounds from which on `step` multiplies the learning rate by `gamma` once more."""
    gamma: float = 0.1
    rounds: Annotated[int, ROUNDS] = 1
    """Number of rounds of the run, after which `cosine` reaches 0."""
    warmup: Annotated[int, Range(0, 2**31 - 1)] = 0
    """Steps of a client in which the rate rises to the schedule's, as counted for a client that
    trains in every round; default (0): no warm-up."""
    clip: float = 0.0
    """Largest norm of a batch's gradient; default (0): no clipping."""
    augment: bool = True
    device: DeviceKind = "auto"
    precision: PrecisionKind = "auto"
    channels_last: ChannelsLastKind = "auto"
    """Memory layout of images: convolutions on CPU and CUDA are faster with channels last."""
    compile: bool = False
    """Run through torch.compile, for long runs on CUDA. Weights differ from those without it."""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "rounds"):
            _check(self, name, getattr(self, name) >= 1, "at least 1")
        _check(self, "steps", self.steps is None or self.steps >= 1, "at least 1, or none")
        for name in ("lr", "gamma"):
            _check(self, name, _finite(getattr(self, name)) > 0, "a finite number above 0")
        _check(self, "warmup", self.warmup >= 0, "0 or more")
        for name in ("weight_decay", "clip"):
            _check(self, name, _finite(getattr(self, name)) >= 0, "a finite number, 0 or more")
        _check(self, "momentum", 0 <= self.momentum < 1, "0 or more and less than 1")
        _check(self, "nesterov", not self.nesterov or self.momentum > 0, "momentum above 0 with it")
        for name, kind in (
            ("optimizer", OptimizerKind),
            ("schedule", ScheduleKind),
            ("device", DeviceKind),
            ("precision", PrecisionKind),
            ("channels_last", ChannelsLastKind),
        ):
            choices = get_args(kind)
            _check(self, name, getattr(self, name) in choices, f"one of {', '.join(choices)}")
        ascending = list(self.milestones) == sorted(set(self.milestones))
        _check(self, "milestones", ascending, "rounds in ascending order, each once")
        if self.schedule == "step":
            _check(self, "milestones", len(self.milestones) > 0, "at least one for schedule step")


def _finite(number: float) -> float:
    """Return the number, or NaN if it is not finite: NaN fails every comparison."""
    return number if math.isfinite(number) else math.nan


def _check(settings: TrainSettings, name: str, holds: bool, expected: str) -> None:
    if not holds:
        raise ValueError(f"{name} is {getattr(settings, name)!r}: expected {expected}")
