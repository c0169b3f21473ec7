"""Attacks that a run simulates: the choice of the attackers, and their instructions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

AttackKind = Literal["none", "shuffled-labels", "amplified"]
ATTACKERS, LABELS = 2**32 - 1, 2**32 - 2
"""Separate the random streams for attackers and for their labels from others of the same seed."""


@dataclass(frozen=True)
class Sabotage:
    """Instructions of one attacker; they are in its own `Work` only."""

    strength: float = 1.0
    """Factor on the change that the attacker sends back."""
    labels: int | None = None
    """Seed by which its labels are shuffled; default (None): unchanged labels."""


@dataclass(frozen=True)
class Attack:
    """The attack of some clients on the others (FedFA, section 3.1)."""

    kind: AttackKind = "none"
    """`shuffled-labels` trains on labels shuffled among the client's examples, `amplified` on its
    true ones; both send back an update of the given strength."""
    share: float = 0.2
    """Share of the clients that attack, 0 to 1."""
    strength: float = 1.0
    """Lambda of the paper: an attacker sends sent + lambda * (trained - sent)."""
    largest: bool = True
    """Let attackers hold the largest level, where few other clients are averaged with them."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(AttackKind):
            choices = ", ".join(get_args(AttackKind))
            raise ValueError(f"kind is {self.kind!r}: expected one of {choices}")
        if not 0 <= self.share <= 1:
            raise ValueError(f"share is {self.share}: expected 0 to 1")
        if not math.isfinite(self.strength):
            raise ValueError(f"strength is {self.strength}: expected a finite number")

    def count(self, clients: int) -> int:
        """Return the number of clients that attack."""
        # Rounds half up; `round` would round half to even.
        return 0 if self.kind == "none" else math.floor(self.share * clients + 0.5)

    def attackers(self, clients: int, seed: int) -> frozenset[int]:
        """Return the numbers of the attackers, from the seed alone: arrivals do not change them."""
        generator = np.random.default_rng((seed, ATTACKERS))
        return frozenset(generator.choice(clients, self.count(clients), replace=False).tolist())

    def sabotage(self, client: int, seed: int) -> Sabotage:
        """Return an attacker's instructions, the same in all rounds."""
        if self.kind != "shuffled-labels":
            return Sabotage(self.strength)
        labels = np.random.default_rng((seed, client, LABELS)).integers(2**31)
        return Sabotage(self.strength, int(labels))
