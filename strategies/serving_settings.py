"""The settings of serving rates (CIS, Algorithm 1): what exits count, and who trains which."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from strategies.federation import Federation, check_least
from strategies.settings import DepthSettings

UNWEIGHTED = ("trimmed-mean", "median")
"""Aggregators that count all updates alike."""


@dataclass(frozen=True, kw_only=True)
class ServingRateSettings(DepthSettings):
    """The settings of Algorithm 1."""

    name: str = "serving_rate"
    norm: str | None = "bn-running"
    head: str | None = "pool"
    weights: Literal["serving", "equal", "flops", "balanced", "given"] = "serving"
    """What each exit counts (Lambda): as it will serve | all alike | by its MACs | the mean of what
    it will serve and of the inverse of its gradients' variance, which clients measure | `given`."""
    given: tuple[float, ...] | None = None
    """What each exit counts, relative to the others."""
    p: float = 0.0
    """How often a node trains each of the exits before its own."""
    probabilities: tuple[tuple[float, ...], ...] | None = None
    """How often a node of each exit trains each exit up to it, in place of p: [[1],[0.2,0.8]]."""
    correction: Literal["inverse", "normalised"] = "inverse"
    """How draws are made up for: by 1/p, so that the step is unbiased (Algorithm 1), or by sharing
    out Lambda among those who train an exit in a round, so that no step is longer than theirs."""
    server_lr: float = 1.0
    radius: float | None = None
    """The largest norm that all weights together may have: the server projects on that ball."""
    variance_batches: int = 16
    """Batches over which a client measures how much gradients vary, at most."""
    equal_steps: bool = True
    """Whether nodes with few examples make as many steps in a round as those with most."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("server_lr", "radius"):
            number = getattr(self, name)
            if number is not None and not 0 < number < math.inf:
                raise ValueError(f"{name} is {number}: expected a finite number above 0")
        if (self.weights == "given") != (self.given is not None):
            raise ValueError(
                f"weights is {self.weights} and given is {self.given and list(self.given)}: "
                "expected weights given with a number for each exit, or neither"
            )
        if self.given is not None and not all(0 < each < math.inf for each in self.given):
            raise ValueError(f"given is {list(self.given)}: expected numbers above 0")
        check_least(self, 2, "variance_batches")
        if not 0 <= self.p < 1:
            raise ValueError(f"p is {self.p}: expected 0 or more, and less than 1")
        if self.p and self.probabilities is not None:
            raise ValueError(f"p is {self.p} beside probabilities: expected one of them")
        for exits, row in enumerate(self.probabilities or (), 1):
            if len(row) != exits or min(row) < 0 or not abs(sum(row) - 1) <= 1e-9:
                raise ValueError(
                    f"probabilities: {list(row)} is row {exits}: expected {exits} numbers, 0 or "
                    "more, that add up to 1"
                )

    def check(self, federation: Federation) -> None:
        """Raise where there are no rates to go by, or an exit of the nodes has no level."""
        super().check(federation)
        fleet = federation.fleet
        if self.weights in ("serving", "balanced") and not fleet.nodes:
            raise ValueError(
                f"weights is {self.weights}, but the fleet has no nodes that serve: choose one "
                "that has, such as fleet=cis_7, or weights equal, flops or given"
            )
        for name in ("ratios", "splits"):
            given = getattr(self, name)
            if fleet.nodes and given and len(given) != fleet.exits:
                raise ValueError(f"{len(given)} {name}, but the nodes have {fleet.exits} exits")
        if federation.aggregation.innermost.name in UNWEIGHTED:
            raise ValueError(
                f"aggregation is {federation.aggregation.innermost.name}, which counts all updates "
                "alike, but exits count differently: choose nested_mean, norm_bound or clipped"
            )
        if self.weights == "serving" and fleet.topology and 0 in fleet.topology.exit_rates:
            idle = fleet.topology.exit_rates.index(0) + 1
            raise ValueError(
                f"weights is serving, but exit {idle} serves no requests and would not be trained: "
                "let nodes serve some there, or choose other weights"
            )

    def drawn_exits(self, own: int) -> tuple[float, ...]:
        """Return how often a node trains each exit, up to its own."""
        if self.probabilities is not None:
            return self.probabilities[own - 1]
        return (*[self.p] * (own - 1), 1 - (own - 1) * self.p)

    def check_levels(self, levels: int, exits: int) -> None:
        """Raise `ValueError` for settings, or nodes, of another number of exits."""
        if exits not in (0, levels):
            raise ValueError(f"{levels} levels, but the nodes have {exits} exits")
        for name in ("given", "probabilities"):
            found = getattr(self, name)
            if found is not None and len(found) != levels:
                raise ValueError(f"{name} has {len(found)} rows: expected {levels}, one an exit")
        if (levels - 1) * self.p >= 1:
            raise ValueError(
                f"p is {self.p}: expected less than {1 / (levels - 1):.3g}, since the last of "
                f"{levels} exits has {levels - 1} before it"
            )
        for number in range(1, levels + 1):
            if not any(self.drawn_exits(own)[number - 1] for own in range(number, levels + 1)):
                raise ValueError(f"probabilities: no node would train exit {number}")
