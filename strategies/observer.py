"""Defines the events of a run that the record, the progress display and trackers listen to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from strategies.coverage import Coverage
from strategies.nodes.enrolment import Client


class Observer:
    """Receives the events of a run; this base does nothing with them."""

    def started(self, coverage: Coverage, clients: Mapping[int, Client]) -> None:
        """The clients have come: note the levels and each level's clients."""

    def replied(self, round: int, done: int, of: int) -> None:
        """Note that `done` of the round's `of` sampled clients have replied or failed."""

    def answered(self, round: int, what: str, done: int, of: int) -> None:
        """Note that `done` of `of` questions besides training, such as tests, are answered."""

    def working(self, round: int, what: str, done: int, of: int) -> None:
        """Note the progress of the server's work after a round's replies, such as distillation."""

    def finished_round(self, metrics: Mapping[str, Any]) -> None:
        """Note the metrics of a finished round."""


class Observers(Observer):
    """Passes each event on to several observers, one after the other."""

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
