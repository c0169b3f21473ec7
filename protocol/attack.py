"""Attacks that a run makes on itself: who takes part, and what an attacker is told to do."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

AttackKind = Literal["none", "shuffled-labels", "amplified"]
ATTACKERS, LABELS = 2**32 - 1, 2**32 - 2
"""Tell the draws of attackers and of their labels from all others that go by the seed."""


@dataclass(frozen=True)
class Sabotage:
    """What one attacker is told to do; it crosses in its `Work`, and in nobody else's."""

    strength: float = 1.0
    """How many times as far as it has trained what it sends back is from what it was sent."""
    labels: int | None = None
    """The seed that its labels are shuffled by; None leaves them."""


@dataclass(frozen=True)
class Attack:
    """What some of the clients do to the others (FedFA, section 3.1)."""

    kind: AttackKind = "none"
    """`shuffled-labels` trains on labels that were dealt out anew among the client's examples,
    `amplified` on its own; both send back an update of the given strength."""
    share: float = 0.2
    """Of the clients."""
    strength: float = 1.0
    """Lambda of the paper: an attacker sends what it was sent + lambda * (trained - sent)."""
    largest: bool = True
    """Whether attackers hold the largest level, where few others are averaged with them."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(AttackKind):
            choices = ", ".join(get_args(AttackKind))
            raise ValueError(f"kind is {self.kind!r}: expected one of {choices}")
        if not 0 <= self.share <= 1:
            raise ValueError(f"share is {self.share}: expected 0 to 1")
        if not math.isfinite(self.strength):
            raise ValueError(f"strength is {self.strength}: expected a finite number")

    def count(self, clients: int) -> int:
        """Return how many of the clients attack."""
        return 0 if self.kind == "none" else math.floor(self.share * clients + 0.5)

    def attackers(self, clients: int, seed: int) -> frozenset[int]:
        """Return the numbers of those who attack, by the seed alone: whoever comes, and when."""
        generator = np.random.default_rng((seed, ATTACKERS))
        return frozenset(generator.choice(clients, self.count(clients), replace=False).tolist())

    def sabotage(self, client: int, seed: int) -> Sabotage:
        """Return what an attacker is told: the same in all rounds."""
        if self.kind != "shuffled-labels":
            return Sabotage(self.strength)
        labels = np.random.default_rng((seed, client, LABELS)).integers(2**31)
        return Sabotage(self.strength, int(labels))
