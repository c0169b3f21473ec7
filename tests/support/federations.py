"""Runs federations in this process, with the real ClientApp and the run's record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from server_app import app as server
from server_app.config.composing import compose
from server_app.record.run_record import RunRecord
from strategies.round import NestedStrategy
from tests.support.grids import InProcessGrid

SMALL = (
    "strategy=heterofl model=resnet20 model.norm=bn fleet.clients=4 clients_per_round=4 rounds=2 "
    "train.epochs=1 train.batch_size=64 dataset.max_train=240 dataset.max_test=60 evaluate.every=0"
)

Federate = Callable[..., tuple[NestedStrategy, list[dict[str, Any]]]]
"""Takes overrides and a grid; returns the strategy after its rounds, and its metrics' lines."""


def untimed(line: Any) -> Any:
    """Return a line of metrics without durations."""
    if not isinstance(line, dict):
        return line
    return {key: untimed(item) for key, item in line.items() if not key.endswith("seconds")}


def federate_in(folder: Path) -> Federate:
    def federate(
        overrides: str = "", grid: InProcessGrid | None = None
    ) -> tuple[NestedStrategy, list[dict[str, Any]]]:
        if not overrides.startswith("resume"):
            name = "" if " name=" in f" {overrides}" else f"name=run{len(list(folder.iterdir()))}"
            overrides = f"{SMALL} output={folder} {name} {overrides}"
        config = compose(overrides)
        strategy = server.run(grid or InProcessGrid(config.fleet.clients), config)
        directory = Path(config.resume) if config.resume else folder / str(config.name)
        return strategy, [dict(line) for line in RunRecord(directory).metrics()]

    return federate
