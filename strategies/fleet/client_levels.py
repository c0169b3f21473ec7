"""Which level a client holds: its tier's, or the largest that its device affords."""

from __future__ import annotations

from collections.abc import Sequence

from strategies.federation import FleetConfig
from strategies.fleet.enrolment import Client
from strategies.levels.planning import Level
from strategies.method_settings import MethodSettings


def level_of(
    client: Client, levels: Sequence[Level], fleet: FleetConfig, settings: MethodSettings
) -> Level:
    """Return a client's level, by the client alone: who else is there may change."""
    if client.profile.budget is None and len(levels) == len(fleet.budgets):
        return levels[_tier_of(client, fleet)]
    full = levels[-1].cost.of(settings.cost)
    afforded = budget_of(client, fleet) * full * (1 + settings.tolerance)
    fitting = [each for each in levels if each.cost.of(settings.cost) <= afforded]
    return fitting[-1] if fitting else levels[0]


def levels_near(
    client: Client, levels: Sequence[Level], own: Level, fleet: FleetConfig
) -> Sequence[Level]:
    """Return the levels that a client may train: its own, and those within the fleet's spread.

    A device that says what it affords is given nothing larger.
    """
    place = levels.index(own)
    above = fleet.spread if client.profile.budget is None else 0
    return levels[max(0, place - fleet.spread) : place + above + 1]


def budget_of(client: Client, fleet: FleetConfig) -> float:
    """Return the share of the full model that a client affords, by its own word or its tier's."""
    budget = client.profile.budget
    return fleet.budgets[_tier_of(client, fleet)] if budget is None else budget


def _tier_of(client: Client, fleet: FleetConfig) -> int:
    parts = client.profile.partitions or fleet.clients
    return fleet.tier_of(client.number, max(parts, client.number + 1))
