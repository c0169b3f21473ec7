"""Decoupled, a baseline of ScaleFL: one FedAvg per level; levels share nothing."""

from __future__ import annotations

from dataclasses import dataclass

from strategies.levels.planning import Level
from strategies.method_settings import PlannedSettings
from strategies.round import NestedStrategy


@dataclass(frozen=True, kw_only=True)
class DecoupledSettings(PlannedSettings):
    """Decoupled's settings: those of its levels."""

    name: str = "decoupled"


class Decoupled(NestedStrategy):
    """The server half."""

    Settings = DecoupledSettings

    def bank(self, name: str, level: Level) -> str | None:
        """Return the level's own bank for every tensor."""
        return f"level{level.number}"
