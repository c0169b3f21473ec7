"""A level's trained network, as a run's checkpoint holds it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from data.spec import DatasetSpec
from models.families import SlicedNetwork
from models.layers import StaticBatchNorm2d
from models.slicing import Slice
from models.task import Task
from protocol.train_settings import TrainSettings
from server_app.app import strategy_of
from server_app.config.composing import ConfigError, load
from server_app.config.saved import CONFIG_FILE, run_directory
from server_app.record import checkpoint
from server_app.record.best import load_best
from server_app.record.files import PROGRESS_FILE


@dataclass(frozen=True, eq=False)
class RestoredLevel:
    """A level of a run: its network, what it was trained on, and after which round."""

    number: int
    net: SlicedNetwork
    task: Task
    slice: Slice
    dataset: DatasetSpec
    """Parted as the run's clients said that it is, so that parts are those they trained on."""
    settings: TrainSettings
    round: int
    outdated_statistics: bool
    """Whether its static norms' statistics are of earlier weights: an evaluation gathers them."""
    untrained: bool = False
    """Whether no client had trained it when the checkpoint was written."""
    validation: float | None = None
    """The round's score on the clients' validation parts, if they were asked."""

    @property
    def exits(self) -> tuple[int, ...]:
        """Return the units that its exits follow."""
        return self.slice.exits or (self.task.units,)


def load_level(path: Path, number: int | None = None, best: bool = False) -> RestoredLevel:
    """Load a level of a run from its directory or a checkpoint; the largest if None.

    Of a directory, it is the newest checkpoint, or the one with the best validation score.
    """
    directory = run_directory(path)
    saved = load_best(directory) if best else checkpoint.load(path)
    config = load(directory / CONFIG_FILE)
    trained = strategy_of(config)
    trained.load_state_dict(saved.tensors)
    number = trained.levels[-1].number if number is None else number
    levels = {level.number: level for level in trained.levels}
    if number not in levels:
        choices = ", ".join(map(str, levels))
        raise ConfigError(f"no level {number} in this run; choose from {choices}")
    net = cast(SlicedNetwork, trained.network(number)).eval()
    static = any(isinstance(module, StaticBatchNorm2d) for module in net.modules())
    clients = _partitions(directory / PROGRESS_FILE) or config.fleet.clients
    return RestoredLevel(
        number=number,
        net=net,
        task=trained.federation.task,
        slice=levels[number].slice,
        dataset=replace(config.dataset, clients=clients),
        settings=config.train,
        round=saved.round,
        outdated_statistics=static and "levels" not in saved.state.get("metrics", {}),
        untrained=number in trained.untrained,
        validation=saved.state.get("metrics", {}).get("validation"),
    )


def _partitions(progress: Path) -> int | None:
    """Return into how many parts the clients of the run's last start had the data set."""
    lines = progress.read_text().splitlines() if progress.is_file() else []
    starts = [event for line in lines if (event := _event(line)).get("event") == "start"]
    return starts[-1].get("partitions") if starts else None


def _event(line: str) -> dict[str, Any]:
    try:
        event: dict[str, Any] = json.loads(line)
    except ValueError:  # cut by a kill
        return {}
    return event
