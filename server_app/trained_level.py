"""Restores a level's trained network from a run's checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, cast

from data.ranges import CLIENTS
from data.spec import DatasetSpec
from models.families import SlicedNetwork
from models.layers import StaticBatchNorm2d
from models.loading import network_of
from models.slicing import Slice
from models.task import Task
from protocol.documents import DocumentError, conforming, lines_of, parse_json
from protocol.train_settings import TrainSettings
from server_app.building import strategy_of
from server_app.config.composing import ConfigError, load
from server_app.config.saved import CONFIG_FILE, run_directory
from server_app.record import checkpoint
from server_app.record.checkpoint import load_best
from server_app.record.files import PROGRESS_FILE
from strategies.federation import FleetConfig


class Start(TypedDict, total=False):
    """The part of a start's event in progress.jsonl that is read here."""

    partitions: int | None  # of the data set, as reported by the clients


@dataclass(frozen=True, eq=False)
class RestoredLevel:
    """A level of a run after a round: its network, data set and settings."""

    number: int
    net: SlicedNetwork
    task: Task
    slice: Slice
    dataset: DatasetSpec
    """The run's data set, with the number of partitions that its clients reported."""
    settings: TrainSettings
    round: int
    outdated_statistics: bool
    """True if its static norms' statistics are older than its weights; a test gathers new ones."""
    untrained: bool = False
    """True if no client had trained the level when the checkpoint was written."""
    ensemble: bool = False
    """True if its answer is the mean of its exits' logits instead of its last exit's."""
    validation: float | None = None
    """The round's score on the clients' validation parts; None if it was not tested."""

    @property
    def exits(self) -> tuple[int, ...]:
        """The units that its exits follow."""
        return self.slice.exits or (self.task.units,)


class TrainedRun:
    """A run after one of its rounds: a directory's newest or best round, or a file's own.

    The best round has the highest score on the clients' validation parts.
    """

    def __init__(self, path: Path, best: bool = False) -> None:
        self._directory = run_directory(path)
        self._saved = load_best(self._directory) if best else checkpoint.load(path)
        self._config = load(self._directory / CONFIG_FILE)
        self._strategy = strategy_of(self._config, start=self._saved)
        self.levels = {level.number: level for level in self._strategy.levels}

    def level(self, number: int | None = None) -> RestoredLevel:
        """Return a level; default (None): the largest."""
        number = max(self.levels) if number is None else number
        if number not in self.levels:
            choices = ", ".join(map(str, self.levels))
            raise ConfigError(f"no level {number} in this run; choose from {choices}")
        net = cast(SlicedNetwork, self._strategy.network(number)).eval()
        static = any(isinstance(module, StaticBatchNorm2d) for module in net.modules())
        clients = _partitions(self._directory / PROGRESS_FILE) or self._config.fleet.clients
        metrics = self._saved.state.get("metrics", {})
        return RestoredLevel(
            number=number,
            net=net,
            task=self._strategy.federation.task,
            slice=self.levels[number].slice,
            dataset=replace(self._config.dataset, clients=clients),
            settings=self._config.train,
            round=self._saved.round,
            outdated_statistics=static and "levels" not in metrics,
            untrained=number in self._strategy.untrained,
            ensemble=self._config.strategy.ensemble,
            validation=metrics.get("validation"),
        )

    def whole(self) -> RestoredLevel:
        """Return the full network with the exits of all levels, under the largest level's number.

        A tensor that each level has for itself is taken from the largest level that has it.
        """
        largest, held = self.level(), self._strategy.whole()
        if held == largest.slice:
            return largest
        names = largest.task.build(held, "meta").state_dict()
        state = {name: self._strategy.state[self._source(name)] for name in names}
        net = network_of(largest.task, held, state).eval()
        banked = any(self._source(name) != name for name in names)
        return replace(largest, net=net, slice=held, outdated_statistics=banked)

    def _source(self, name: str) -> str:
        """Return the name in the global state of a tensor of the whole network."""
        for level in reversed(self.levels.values()):
            source = f"{name}@{self._strategy.bank(name, level)}"
            if source in self._strategy.state:
                return source
        return name

    @property
    def name(self) -> str:
        """The name of the run's directory."""
        return self._directory.name

    @property
    def fleet(self) -> FleetConfig:
        return self._config.fleet


def load_level(path: Path, number: int | None = None, best: bool = False) -> RestoredLevel:
    """Load one level of a run, from its directory or a checkpoint; default (None): the largest."""
    return TrainedRun(path, best).level(number)


def _partitions(progress: Path) -> int | None:
    """Return the number of partitions that the clients reported at the run's last start."""
    starts = [event for event in _events(progress) if event.get("event") == "start"]
    if not starts:
        return None
    found: int | None = conforming(starts[-1], Start, progress).get("partitions")
    return found if found is None else CLIENTS.check(f"{progress}: partitions", found)


def _events(progress: Path) -> Iterator[dict[str, Any]]:
    for line in lines_of(progress) if progress.exists() else ():
        with suppress(DocumentError):  # a line that a kill cut short
            event: dict[str, Any] = parse_json(line, progress, dict)
            yield event
