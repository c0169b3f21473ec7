"""Counts the clients of each level, logs them at the start, and stops a run that lacks them."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from models import family
from protocol.environment import STARTED_IN
from protocol.work import Part
from strategies.federation import Federation, FederationError
from strategies.levels.planning import Level
from strategies.method_settings import MethodSettings
from strategies.nodes.enrolment import Client

Lack = Literal["untrained", "no client"]
"""Mark of a level without clients. "untrained": no reply for it has ever been averaged, so its
network was never trained as a whole, though larger levels train the weights it shares with them.
"no client": it had clients before the run was resumed without them."""

MORE_NODES = "--federation-config 'num-supernodes={} client-resources-num-cpus=1'"
"""Options that give `flwr run` as many simulated clients as the fleet has; its own default is 2."""

MOST_NAMED = 20
"""Clients whose measured budgets are logged one by one."""

log = logging.getLogger("flwr")  # the logger that `flwr log` shows


@dataclass
class Coverage:
    """The clients that hold and train each level, computed once for a set of clients."""

    levels: Sequence[Level]
    clients: Mapping[int, Client]
    untrained: AbstractSet[int] = frozenset()
    """Levels for which no client has sent a usable reply yet."""
    own: dict[int, Level] = field(default_factory=dict)
    """Each client's own level, by client number."""
    may: dict[int, frozenset[int]] = field(default_factory=dict)
    """The levels that each client may be assigned."""
    trains: dict[int, frozenset[int]] = field(default_factory=dict)
    """The levels that are trained when a client trains, whatever level it is assigned."""

    def is_of(self, levels: Sequence[Level], clients: Mapping[int, Client]) -> bool:
        """Return whether it was computed for these levels and clients; the roster makes a new
        dictionary when clients come."""
        same = levels is self.levels and clients is self.clients
        return same and len(self.own) == len(clients)

    @cached_property
    def held(self) -> Counter[int]:
        """Number of clients that train each level."""
        return Counter(level for levels in self.trains.values() for level in levels)

    @cached_property
    def owned(self) -> Counter[int]:
        """Number of clients whose own level each level is."""
        return Counter(level.number for level in self.own.values())

    @cached_property
    def first(self) -> dict[int, int]:
        """Lowest number of a client that may be assigned each level."""
        found: dict[int, int] = {}
        for number in sorted(self.may, reverse=True):
            found |= dict.fromkeys(self.may[number], number)
        return found

    def trained_by(self, clients: Iterable[int]) -> set[int]:
        """Return the levels that these clients train together."""
        return set().union(*(self.trains[number] for number in clients))

    @property
    def lacks(self) -> dict[int, Lack]:
        """The levels without clients, with their mark for reports."""
        return {
            level.number: "untrained" if level.number in self.untrained else "no client"
            for level in self.levels
            if not self.held[level.number]
        }


def without_parts(federation: Federation, clients: Collection[Client]) -> dict[Part, int]:
    """Return the number of clients that lack a part that the run tests on, by the part's name."""
    tested: dict[Part, bool] = {
        "test": federation.dataset.tests_locally,
        "validation": federation.validates,
    }
    lacking: dict[Part, int] = {
        part: sum(not client.profile.of_part(part) for client in clients)
        for part, due in tested.items()
        if due
    }
    return {part: count for part, count in lacking.items() if count}


def describe(
    federation: Federation,
    settings: MethodSettings,
    coverage: Coverage,
    clients: Collection[Client],
) -> None:
    """Log the levels, the clients that train them, and what is missing."""
    if len(clients) < federation.fleet.clients:
        with_all = MORE_NODES.format(federation.fleet.clients)
        advice = f"; a simulation has them all with: flwr run . {with_all}"
        log.warning(
            "%d of the fleet's %d clients are there%s",
            len(clients),
            federation.fleet.clients,
            advice if STARTED_IN in os.environ else "",
        )
    _describe_levels(federation, settings, coverage)
    if attackers := federation.attackers & {client.number for client in clients}:
        attack = federation.fleet.attack
        log.warning(
            "%d of %d clients attack (fleet.attack): %s, strength %g",
            len(attackers),
            len(clients),
            attack.kind,
            attack.strength,
        )
    if federation.fleet.nodes and len(coverage.levels) != federation.fleet.exits:
        log.warning(
            "the fleet's nodes have %d exits, but there are %d levels: what nodes serve is no "
            "matter here, and the accuracy of their system is not measured",
            federation.fleet.exits,
            len(coverage.levels),
        )
    devices = Counter(client.profile.device for client in clients)
    log.info("%s", ", ".join(f"{n} clients train on {kind}" for kind, n in devices.items()))
    _describe_budgets(clients)
    for part, count in without_parts(federation, clients).items():
        log.warning(
            "%d of %d clients have no %s part: they are not asked to test on it (dataset.%s is a "
            "share of each client's examples, rounded down)",
            *(count, len(clients), part, part),
        )
    for number, lack in coverage.lacks.items():
        log.warning(
            "level %d is held by no client: it is marked %r, and left out of worst and mean",
            number,
            lack,
        )


def _describe_budgets(clients: Collection[Client]) -> None:
    """Log the budgets that devices have measured."""
    measured = [client for client in clients if client.profile.measured]
    told = [f"client {each.number}: {each.profile.budget:.3g}" for each in measured[:MOST_NAMED]]
    more = [f"and {len(measured) - MOST_NAMED} more"] if len(measured) > MOST_NAMED else []
    if measured:
        log.info("budgets that devices have measured: %s", ", ".join([*told, *more]))


def _describe_levels(federation: Federation, settings: MethodSettings, coverage: Coverage) -> None:
    for option, asked in settings.asked.items():
        if asked is not None and option not in family(federation.model.name).options:
            log.info(
                "%s has no choice of %s: %s, which %s asks for, does not apply",
                federation.model.name,
                option,
                asked,
                settings.name,
            )
    full = coverage.levels[-1].cost.of(settings.cost)
    for level in coverage.levels:
        log.info(
            "level %d: %d units of width %s, %.3g of the full cost, %d clients",
            level.number,
            level.slice.kept_units(federation.task.units),
            _told(level.slice.width),
            level.cost.of(settings.cost) / full,
            coverage.held[level.number],
        )


def _told(width: float | tuple[float, ...]) -> str:
    """Format a width: one number if all stages have the same, else one per stage."""
    shares = dict.fromkeys(width if isinstance(width, tuple) else (width,))
    every = width if isinstance(width, tuple) and len(shares) > 1 else shares
    return ", ".join(f"{share:.3g}" for share in every)


def require_full_model(
    federation: Federation,
    settings: MethodSettings,
    coverage: Coverage,
    clients: Collection[Client],
) -> None:
    """Raise where devices state their budgets, and none affords the full model.

    A simulated fleet takes its budgets from the config, where leaving out the top is a choice.
    """
    top = coverage.levels[-1]
    named = [client.profile.budget for client in clients]
    budgets = [budget for budget in named if budget is not None]
    if not budgets or coverage.held[top.number] or federation.missing_levels == "warn":
        return
    raise FederationError(
        f"no device affords the full model: the largest budget is {max(budgets):.3g}, but its "
        f"{top.cost.of(settings.cost):,} {settings.cost} need "
        f"{1 / (1 + settings.tolerance):.3g} or more (1, within strategy.tolerance), and what "
        "no client holds is never trained: let a larger device join, choose a smaller model, or "
        "train the lower levels alone with missing_levels=warn"
    )
