"""FedAvg (McMahan et al., 2017): the smallest level's network for every client."""

from __future__ import annotations

from strategies.base import NestedStrategy
from strategies.levels.planning import Level


class FedAvg(NestedStrategy):
    def plan(self) -> list[Level]:
        return super().plan()[:1]
