"""FedAvg (McMahan et al., 2017): the smallest level's network for every client."""

from __future__ import annotations

from dataclasses import dataclass

from strategies.levels.planning import Level
from strategies.method_settings import PlannedSettings
from strategies.round import NestedStrategy


@dataclass(frozen=True, kw_only=True)
class FedAvgSettings(PlannedSettings):
    """FedAvg's settings: those of its levels. `ratios=[1]` trains the full model."""

    name: str = "fedavg"


class FedAvg(NestedStrategy):
    """The server half."""

    Settings = FedAvgSettings

    def plan(self) -> list[Level]:
        """Return the smallest level alone, which every client affords."""
        return super().plan()[:1]
