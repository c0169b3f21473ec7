"""Draw the clients of a round, and say what each of them trains or tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from models import State, extract
from protocol.arrays import pack
from protocol.train_settings import TrainSettings
from protocol.work import Part
from strategies.federation import Federation, FleetConfig
from strategies.levels.planning import Level
from strategies.levels.submodels import Cut, Submodels
from strategies.method_settings import MethodSettings
from strategies.nodes.enrolment import Client

LEVELS = 2**31
"""Separates the random stream for levels from the one for training seeds."""


@dataclass(frozen=True)
class Assignment:
    """A client, and the cut that it trains or tests: made once a round, and kept with its reply.

    Its tensors are cut out when they are sent and looked up when they come back, so that a round
    of many clients takes no more memory than a round of few.
    """

    client: Client
    cut: Cut
    weight: float | None = None
    """Aggregation weight of its update; None follows the run's `weighting`."""
    told: Mapping[str, Any] = field(default_factory=dict)
    """Values for the method's client half; any JSON."""
    what: str = "training"
    """The name that reports use for the question: training, or the name of a test."""
    part: Part = "test"
    """The part of the client's data that a test uses."""
    train: TrainSettings | None = None
    """How the client trains; None: as the run's `train` says."""
    macs: int | None = None
    """MACs of a forward pass of one example in training; None: those of the slice."""
    turn: int = 0
    """Number of assignments that its client has before it in this round."""
    personal: bool = False
    """Whether the client tests its trained slice before it sends it back."""

    @property
    def level(self) -> int:
        """The number of its level in reports."""
        return self.cut.level.number


def in_turn(assigned: Iterable[Assignment], told: Mapping[str, Any]) -> list[Assignment]:
    """Return the assignments with their turns; `told` is added for every client."""
    turns: Counter[int] = Counter()
    found = []
    for each in assigned:
        client = each.client.number
        found.append(replace(each, turn=turns[client], told={**each.told, **told}))
        turns[client] += 1
    return found


def sampled(available: Collection[int], count: int, seed: int, round: int) -> list[int]:
    """Return at most `count` of the clients, drawn from (seed, round) over the sorted numbers."""
    generator = np.random.default_rng((seed, round))
    drawn = generator.choice(sorted(available), min(count, len(available)), replace=False)
    return sorted(drawn.tolist())


def drawn_level(weights: Mapping[Level, float], seed: int, round: int, client: int) -> Level:
    """Return one of the levels, as often as its weight says, from (seed, round, client)."""
    if len(weights) == 1:
        return next(iter(weights))
    generator = np.random.default_rng((seed, round, client, LEVELS))
    shares = np.asarray(list(weights.values())) / sum(weights.values())
    return list(weights)[int(generator.choice(len(shares), p=shares))]


def messages(
    kind: str,
    assigned: Iterable[Assignment],
    state: State,
    submodels: Submodels,
    work: Callable[[Assignment], ConfigRecord],
) -> Iterator[tuple[Assignment, Message]]:
    """Yield each assignment with its message, which is made when it is asked for.

    The newest packed slices, one per level, are kept for the next client with the same cut.
    """
    packed: dict[Cut, ArrayRecord] = {}
    for number, each in enumerate(assigned):
        if each.cut not in packed:
            if len(packed) == len(submodels.levels):  # clients have windows of their own
                packed.clear()
            packed[each.cut] = pack(extract(state, submodels.of(each.cut).map))
        content = RecordDict({"arrays": packed[each.cut], "work": work(each)})
        node = each.client.node
        yield each, Message(content, dst_node_id=node, message_type=kind, group_id=str(number))


def level_of(
    client: Client, levels: Sequence[Level], federation: Federation, settings: MethodSettings
) -> Level:
    """Return a client's own level: its tier's, or the largest that it affords.

    It follows from the client alone, since the other clients may change.
    """
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

    A device with a budget of its own is given nothing larger than its level. An attacker that
    takes the largest level keeps it.
    """
    spread = federation.fleet.spread
    if not spread or takes_largest(client, federation):
        return [own]
    place = own.number - 1
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
