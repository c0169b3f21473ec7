"""Decides what a run resumes from, and refuses a run that cannot go on.

`resume=PATH` names a run directory or one of its checkpoints. The run keeps its own configuration,
which overrides change (`config/composing.py`). `start_of` returns the checkpoint. The record goes
back to the checkpoint's round (`RunRecord.resume`, `fleet_record.resumed`).
"""

from __future__ import annotations

from pathlib import Path

from data.catalog import DataError
from data.digest import Digest, require_same
from data.spec import DatasetSpec
from server_app.config.composing import Config
from server_app.config.saved import run_directory
from server_app.config.typed import ConfigError
from server_app.record.checkpoint import Checkpoint, load
from server_app.record.files import FLEET_FILE, METRICS_FILE
from server_app.record.fleet_record import read_fleet
from server_app.record.metrics import read_metrics


def start_of(config: Config) -> Checkpoint | None:
    """Return the checkpoint that a run resumes from; None for a new run.

    Raise where the run cannot go on: it is beyond its last round, its own data has changed, or its
    record is damaged.
    """
    if not config.resume:
        return None
    start = load(Path(config.resume))
    if config.rounds < start.round:
        raise ConfigError(
            f"rounds is {config.rounds}, but the run has come to round {start.round}: expected "
            "as many or more"
        )
    directory = run_directory(start.path)
    _require_same_data(directory / FLEET_FILE, config.dataset)
    read_metrics(directory / METRICS_FILE)  # raises for a damaged file before any process starts
    return start


def _require_same_data(file: Path, dataset: DatasetSpec) -> None:
    """Raise where data of one's own is not what fleet.json says that the run was started on."""
    fleet = read_fleet(file)
    if fleet is not None and "data" in fleet and dataset.is_own:
        known = fleet["data"]
        try:
            require_same(dataset, Digest(known["train"], known["test"], known["content"]))
        except DataError as error:
            raise ConfigError(f"resume: {error}") from error
