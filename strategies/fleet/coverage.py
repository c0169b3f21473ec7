"""Which levels have clients: what is said of that at the start, and of levels that nobody holds."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Collection, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Literal

from models import family
from protocol.environment import STARTED_IN
from strategies.federation import Federation, FederationError
from strategies.fleet.enrolment import Client
from strategies.levels.planning import Level
from strategies.method_settings import MethodSettings

Lack = Literal["untrained", "no client"]
"""A level that nobody holds is untrained if nobody ever did: no reply of it has been averaged, and
its network was never trained as a whole, though other levels train the weights it shares with them.
If clients held it before the run was resumed without them, it has no client (any more)."""

MORE_NODES = "--federation-config 'num-supernodes={} client-resources-num-cpus=1'"
"""What gives `flwr run` as many simulated clients as the fleet has; its own default is 2."""

log = logging.getLogger("flwr")  # whose lines `flwr log` shows


@dataclass(frozen=True)
class Coverage:
    """The levels, how many clients hold each, and which no client has ever trained."""

    levels: Sequence[Level]
    held: Counter[int]
    untrained: AbstractSet[int]

    @property
    def lacks(self) -> dict[int, Lack]:
        """The levels that nobody holds, and what that makes of them."""
        return {
            level.number: "untrained" if level.number in self.untrained else "no client"
            for level in self.levels
            if not self.held[level.number]
        }


def describe(
    federation: Federation,
    settings: MethodSettings,
    coverage: Coverage,
    clients: Collection[Client],
) -> None:
    """Log what the levels are, who trains them, and what is missing."""
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
    for number, lack in coverage.lacks.items():
        log.warning(
            "level %d is held by no client: it is marked %r, and left out of worst and mean",
            number,
            lack,
        )


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
    """Return a width in words: one number, where all stages have the same."""
    shares = dict.fromkeys(width if isinstance(width, tuple) else (width,))
    every = width if isinstance(width, tuple) and len(shares) > 1 else shares
    return ", ".join(f"{share:.3g}" for share in every)


def require_full_model(
    federation: Federation,
    settings: MethodSettings,
    coverage: Coverage,
    clients: Collection[Client],
) -> None:
    """Raise where devices say what they afford, and none affords the full model.

    Where the config says it (a simulated fleet), it is the user who wants no client at the top.
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
