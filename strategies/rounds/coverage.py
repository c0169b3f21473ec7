"""Who holds which level: what is said of that at the start, and which levels nobody holds."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Literal

from strategies.federation import FederationError

if TYPE_CHECKING:
    from strategies.base import NestedStrategy

Lack = Literal["untrained", "no client"]
"""A level that nobody holds is untrained if nobody ever did: no reply of it has been averaged, and
its network was never trained as a whole, though other levels train the weights it shares with them.
If clients held it before the run was resumed without them, it has no client (any more)."""

MORE_NODES = "--federation-config 'num-supernodes={} client-resources-num-cpus=1'"
"""What gives `flwr run` as many simulated clients as the fleet has; its own default is 2."""

log = logging.getLogger("flwr")  # whose lines `flwr log` shows


def held_levels(strategy: NestedStrategy) -> Counter[int]:
    """How many clients hold each level."""
    return Counter(map(strategy.level_of, strategy.clients.values()))


def lacks(strategy: NestedStrategy) -> dict[int, Lack]:
    """The levels that nobody holds, and what that makes of them."""
    held = held_levels(strategy)
    return {
        level.number: "untrained" if level.number in strategy.untrained else "no client"
        for level in strategy.levels
        if not held[level.number]
    }


def describe(strategy: NestedStrategy) -> None:
    """Log what the levels are, who trains them, and what is missing."""
    federation, counts = strategy.federation, held_levels(strategy)
    if len(strategy.clients) < federation.clients:
        log.warning(
            "%d of the fleet's %d clients are there; a simulation has them all with: flwr run . %s",
            len(strategy.clients),
            federation.clients,
            MORE_NODES.format(federation.clients),
        )
    full = strategy.levels[-1].cost.of(federation.cost)
    for level in strategy.levels:
        log.info(
            "level %d: %d units of width %g, %.3g of the full cost, %d clients",
            level.number,
            level.split.depth,
            level.split.width,
            level.cost.of(federation.cost) / full,
            counts[level.number],
        )
    devices = Counter(client.profile.device for client in strategy.clients.values())
    log.info("%s", ", ".join(f"{n} clients train on {kind}" for kind, n in devices.items()))
    for number, lack in lacks(strategy).items():
        log.warning(
            "level %d is held by no client: it is marked %r, and left out of worst and mean",
            number,
            lack,
        )


def require_full_model(strategy: NestedStrategy) -> None:
    """Raise where devices say what they afford, and none affords the full model.

    Where the config says it (a simulated fleet), it is the user who wants no client at the top.
    """
    federation, top = strategy.federation, strategy.levels[-1]
    named = [client.profile.budget for client in strategy.clients.values()]
    budgets = [budget for budget in named if budget is not None]
    if not budgets or held_levels(strategy)[top.number] or federation.missing_levels == "warn":
        return
    raise FederationError(
        f"no device affords the full model: the largest budget is {max(budgets):.3g}, but its "
        f"{top.cost.of(federation.cost):,} {federation.cost} need "
        f"{1 / (1 + federation.tolerance):.3g} or more (1, within strategy.tolerance), and what "
        "no client holds is never trained: let a larger device join, choose a smaller model, or "
        "train the lower levels alone with missing_levels=warn"
    )
