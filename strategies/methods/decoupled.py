"""Decoupled: one FedAvg for each level; levels share nothing."""

from __future__ import annotations

from strategies.base import NestedStrategy


class Decoupled(NestedStrategy):
    def private(self, name: str) -> bool:
        return True
