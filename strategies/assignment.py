"""Draws the clients of a round, and assigns each a level to train or test."""

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
    """A client and the cut it trains or tests: made once per round and kept with its reply.

    The tensors are cut out when the message is sent and looked up when the reply arrives, so a
    round of many clients takes no more memory than a round of few.
    """

    client: Client
    cut: Cut
    weight: float | None = None
    """Aggregation weight of its update; default (None): by the run's `weighting`."""
    told: Mapping[str, Any] = field(default_factory=dict)
    """Values for the method's client half, as JSON."""
    what: str = "training"
    """Name of the work in reports: training, or the name of a test."""
    part: Part = "test"
    """Part of the client's data that a test uses."""
    train: TrainSettings | None = None
    """Training settings of the client; default (None): the run's `train`."""
    macs: int | None = None
    """MACs of a forward pass of one example in training; default (None): those of the slice."""
    turn: int = 0
    """Number of assignments of the same client before this one in the round."""
    personal: bool = False
    """Test the trained slice on the client before it is sent back."""

    @property
    def level(self) -> int:
        """Level number in reports."""
        return self.cut.level.number


def in_turn(assigned: Iterable[Assignment], told: Mapping[str, Any]) -> list[Assignment]:
    """Number each client's assignments within the round, and add `told` to each."""
    turns: Counter[int] = Counter()
    found = []
    for each in assigned:
        client = each.client.number
        found.append(replace(each, turn=turns[client], told={**each.told, **told}))
        turns[client] += 1
    return found


def sampled(available: Collection[int], count: int, seed: int, round: int) -> list[int]:
    """Draw at most `count` clients without replacement.

    The draw follows from (seed, round) over the sorted numbers: arrival order does not change it.
    """
    generator = np.random.default_rng((seed, round))
    drawn = generator.choice(sorted(available), min(count, len(available)), replace=False)
    return sorted(drawn.tolist())


def drawn_level(weights: Mapping[Level, float], seed: int, round: int, client: int) -> Level:
    """Draw a level in proportion to the weights, from (seed, round, client)."""
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
    """Yield each assignment with its message; the message is built when it is requested.

    The newest packed slices, one per level, are kept for the next client with the same cut.
    """
    packed: dict[Cut, ArrayRecord] = {}
    for number, each in enumerate(assigned):
        if each.cut not in packed:
            if len(packed) == len(submodels.levels):  # clients' windows differ, as with random ones
                packed.clear()
            packed[each.cut] = pack(extract(state, submodels.of(each.cut).map))
        content = RecordDict({"arrays": packed[each.cut], "work": work(each)})
        node = each.client.node
        yield each, Message(content, dst_node_id=node, message_type=kind, group_id=str(number))


def level_of(
    client: Client, levels: Sequence[Level], federation: Federation, settings: MethodSettings
) -> Level:
    """Return a client's own level: its tier's, or the largest that it affords.

    It depends on the client alone, since the other clients may change.
    """
    fleet = federation.fleet
    if takes_largest(client, federation):
        return levels[-1]
    highest = levels
    # A node of the fleet's topology serves up to its own exit: it trains no deeper level.
    if (node := fleet.node_of(client.number)) and len(levels) == fleet.exits:
        highest = levels[: node.exit]
        if client.profile.budget is None:
            return highest[-1]
    # With one level per tier, the tier alone decides; costs need not be compared.
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

    A device that states its own budget gets no level above its own. An attacker with
    `attack.largest` always keeps the largest level.
    """
    spread = federation.fleet.spread
    if not spread or takes_largest(client, federation):
        return [own]
    place = own.number - 1
    above = spread if client.profile.budget is None else 0
    return levels[max(0, place - spread) : place + above + 1]


def takes_largest(client: Client, federation: Federation) -> bool:
    """Return whether a client is an attacker with `attack.largest`, which holds the largest level.

    A device's stated budget is trusted, also an attacker's.
    """
    attacks = client.number in federation.attackers and federation.fleet.attack.largest
    return attacks and client.profile.budget is None


def budget_of(client: Client, fleet: FleetConfig) -> float:
    """Return the share of the full model's cost that a client affords: its own, or its tier's."""
    budget = client.profile.budget
    return fleet.budgets[_tier_of(client, fleet)] if budget is None else budget


def _tier_of(client: Client, fleet: FleetConfig) -> int:
    parts = client.profile.partitions or fleet.clients
    return fleet.tier_of(client.number, max(parts, client.number + 1))
