"""What a client is given to do in a round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from protocol.work import Part
from strategies.federation import Federation, FleetConfig
from strategies.levels.planning import Level
from strategies.levels.submodels import Cut
from strategies.method_settings import MethodSettings
from strategies.nodes.enrolment import Client


@dataclass(frozen=True)
class Assignment:
    """A client, and the cut that it trains or tests: made once a round, and the reply's own.

    Its tensors are looked up when they are sent and when they come back, so that a round of many
    clients takes no more memory than one of few.
    """

    client: Client
    cut: Cut
    weight: float | None = None
    """What its update counts; None leaves that to the run's `weighting`."""
    told: Mapping[str, Any] = field(default_factory=dict)
    """What the client half is told: whatever JSON can hold."""
    turn: int = 0
    """How many assignments of this round its client has before it."""
    part: Part = "test"
    """Of the client's data, where the cut is to be tested."""
    personal: bool = False
    """Whether the client tests what it has trained, before it sends it back."""

    @property
    def level(self) -> int:
        """The number that reports know its level by."""
        return self.cut.level.number


def in_turn(assigned: Iterable[Assignment], told: Mapping[str, Any]) -> list[Assignment]:
    """Return assignments that know their turn, and tell their clients something more."""
    turns: Counter[int] = Counter()
    found = []
    for each in assigned:
        client = each.client.number
        found.append(replace(each, turn=turns[client], told={**each.told, **told}))
        turns[client] += 1
    return found


LEVELS = 2**31
"""Tells the draws of levels from those of seeds, which go by (seed, round, client), too."""


def sampled(available: Collection[int], count: int, seed: int, round: int) -> list[int]:
    """Return so many of the clients, or all, drawn from (seed, round) over the sorted numbers."""
    generator = np.random.default_rng((seed, round))
    drawn = generator.choice(sorted(available), min(count, len(available)), replace=False)
    return sorted(drawn.tolist())


def drawn(weights: Sequence[float], seed: int, round: int, client: int) -> int:
    """Return one of the positions, as often as its weight says, from (seed, round, client)."""
    generator = np.random.default_rng((seed, round, client, LEVELS))
    return int(generator.choice(len(weights), p=np.asarray(weights) / sum(weights)))


def level_of(
    client: Client, levels: Sequence[Level], federation: Federation, settings: MethodSettings
) -> Level:
    """Return a client's level, by the client alone: who else is there may change."""
    fleet = federation.fleet
    if takes_largest(client, federation):
        return levels[-1]
    highest = levels
    if (node := fleet.node_of(client.number)) and len(levels) == fleet.exits:
        highest = levels[: node.exit]
        if client.profile.budget is None:
            return highest[-1]
    if client.profile.budget is None and len(levels) == len(fleet.budgets):
        return levels[_tier_of(client, fleet)]
    full = levels[-1].cost.of(settings.cost)
    afforded = budget_of(client, fleet) * full * (1 + settings.tolerance)
    fitting = [each for each in highest if each.cost.of(settings.cost) <= afforded]
    return fitting[-1] if fitting else levels[0]


def levels_near(
    client: Client, levels: Sequence[Level], own: Level, federation: Federation
) -> Sequence[Level]:
    """Return the levels that a client may train: its own, and those within the fleet's spread.

    A device that says what it affords is given nothing larger; an attacker that takes the largest
    keeps to it.
    """
    if takes_largest(client, federation):
        return [own]
    place, spread = levels.index(own), federation.fleet.spread
    above = spread if client.profile.budget is None else 0
    return levels[max(0, place - spread) : place + above + 1]


def takes_largest(client: Client, federation: Federation) -> bool:
    """Return whether a client is an attacker that holds the largest level, whatever its tier.

    A device that says what it affords is taken at its word.
    """
    attacks = client.number in federation.attackers and federation.fleet.attack.largest
    return attacks and client.profile.budget is None


def budget_of(client: Client, fleet: FleetConfig) -> float:
    """Return the share of the full model that a client affords, by its own word or its tier's."""
    budget = client.profile.budget
    return fleet.budgets[_tier_of(client, fleet)] if budget is None else budget


def _tier_of(client: Client, fleet: FleetConfig) -> int:
    parts = client.profile.partitions or fleet.clients
    return fleet.tier_of(client.number, max(parts, client.number + 1))
