"""Which level a client holds: its tier's, or the largest that its device affords."""

from __future__ import annotations

from collections.abc import Sequence

from strategies.federation import Federation, FleetConfig
from strategies.nodes.enrolment import Client
from strategies.levels.planning import Level
from strategies.settings import MethodSettings


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
