"""ScaleFL (Ilhan, Su, Liu: "ScaleFL", CVPR 2023): levels of depth and width, distilled.

- Levels are split by Eq. (1) (`strategies/levels/planning.py`): each is a narrower network up to an
  early exit, and also holds and trains the exits of the levels below it.
- Clients minimise Eq. (5): the cross-entropy of each exit, and its divergence from the last exit.
- The server averages what overlaps (Algorithm 3), which is the base's nested mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from data.ranges import Range
from models import Window
from strategies.federation import Federation
from strategies.method_settings import PlannedSettings
from strategies.round import NestedStrategy
from training.devices import PlacedNetwork
from training.local_training import LocalTraining
from training.shared_losses import kl_divergence

WindowKind = Literal["prefix", "upper-right", "lower-left", "lower-right", "middle", "random"]


@dataclass(frozen=True, kw_only=True)
class ScaleFLSettings(PlannedSettings):
    """ScaleFL's settings; the paper's values are the defaults."""

    name: str = "scalefl"
    norm: str | None = "bn"
    scaler: str | None = "always"
    window: WindowKind = "prefix"
    """Channels that a slice keeps (Table 6); `random` draws other channels for each client."""
    beta: float = 0.1
    """Weight of an exit's divergence from the last exit, 0 or more."""
    temperature: float = 3.0
    normalise: Literal["unit", "printed"] = "unit"
    """Sum of the exits' weights: 1 (unit), or 1/2 as in the printed Eq. (5)."""
    detach_teacher: bool = True
    start: Annotated[int, Range(0, 999_999)] = 1
    """First round with distillation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.beta < math.inf:
            raise ValueError(f"beta is {self.beta}: expected a finite number, 0 or more")
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"temperature is {self.temperature}: expected a finite number above 0")

    def check(self, federation: Federation) -> None:
        """Raise where a window does not fit the network.

        A level's statistics need the same channels at all clients; padded shortcuts need the first
        ones.
        """
        super().check(federation)
        norm, shortcut = (federation.model.options.get(key) for key in ("norm", "shortcut"))
        if self.window == "random" and norm in ("bn-running", "bn-static"):
            raise ValueError(
                f"window is random, but model.norm {norm} keeps one set of statistics for "
                "all clients of a level, who then have other channels each: choose another window, "
                "or norm bn or gn"
            )
        if self.window != "prefix" and shortcut == "A":
            raise ValueError(
                f"window is {self.window}, but model.shortcut A pads where the first channels "
                "belong: choose window prefix, or shortcut B"
            )


class ScaleFLTraining(LocalTraining):
    """The client half: self-distillation among the exits of the slice."""

    settings: ScaleFLSettings

    def loss(self, network: PlacedNetwork, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return Eq. (5) for a batch."""
        return self_distillation(network(inputs), labels, self.settings, self.work.round)


def self_distillation(
    logits: list[Tensor], labels: Tensor, settings: ScaleFLSettings, round: int
) -> Tensor:
    """Return Eq. (5): exit i of l learns from the labels and, by `beta`, from the last exit.

    Exit i has weight i over the sum of all weights, so that a single exit has plain cross-entropy.
    """
    teacher = logits[-1].detach() if settings.detach_teacher else logits[-1]
    beta = settings.beta if round >= settings.start else 0.0
    total = torch.zeros((), device=labels.device)
    for number, student in enumerate(logits, 1):
        loss = F.cross_entropy(student, labels)
        if beta and number < len(logits):  # the last exit has nothing to learn from itself
            loss = loss + beta * kl_divergence(student, teacher, settings.temperature)
        total = total + number * loss
    share = 2 if settings.normalise == "unit" else 1
    return total * share / (len(logits) * (len(logits) + 1))


class ScaleFL(NestedStrategy):
    """The server half: levels hold the exits below their own; windows may differ by client."""

    Settings = ScaleFLSettings
    Training = ScaleFLTraining
    early_exits = True
    settings: ScaleFLSettings

    def window_of(self, client: int, round: int) -> Window:
        """Return the run's window; a random one is drawn once per client and stays the same."""
        kind, seed = self.settings.window, self.federation.seed
        if kind != "random":
            return Window(kind)
        return Window(kind, int(np.random.default_rng((seed, client)).integers(2**31)))
