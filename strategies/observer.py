"""What is told of a run as it goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strategies.coverage import Coverage
from strategies.nodes.enrolment import Client


class Observer:
    """Is told of a run; does nothing by itself."""

    def started(self, coverage: Coverage, clients: Mapping[int, Client]) -> None:
        """Note the levels, and who trains them."""

    def replied(self, round: int, done: int, of: int) -> None:
        """Note that so many of a round's clients have answered."""

    def answered(self, round: int, what: str, done: int, of: int) -> None:
        """Note that so many questions besides training, such as tests, are answered."""

    def working(self, round: int, what: str, done: int, of: int) -> None:
        """Note how far the server is with work of its own after a round's replies."""

    def finished_round(self, metrics: Mapping[str, Any]) -> None:
        """Note what a round came to."""


class Observers(Observer):
    """Tells several observers, one after the other."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def started(self, coverage: Coverage, clients: Mapping[int, Client]) -> None:
        for each in self._observers:
            each.started(coverage, clients)

    def replied(self, round: int, done: int, of: int) -> None:
        for each in self._observers:
            each.replied(round, done, of)

    def answered(self, round: int, what: str, done: int, of: int) -> None:
        for each in self._observers:
            each.answered(round, what, done, of)

    def working(self, round: int, what: str, done: int, of: int) -> None:
        for each in self._observers:
            each.working(round, what, done, of)

    def finished_round(self, metrics: Mapping[str, Any]) -> None:
        for each in self._observers:
            each.finished_round(metrics)
