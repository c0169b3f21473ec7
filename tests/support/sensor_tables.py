"""Tables of numbers like those of sensors, a wave for each activity, and runs on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from server_app import app as server
from server_app.config.composing import compose
from tests.support.grids import InProcessGrid

ACTIVITIES = ("rest", "walk", "run")


def sensor_table(file: Path, people: int = 4, rows: int = 48) -> Path:
    """Write a recording of `rows` rows for each person and activity, with two channels."""
    rng = np.random.default_rng(0)
    columns: dict[str, list[object]] = {name: [] for name in ("ax", "ay", "activity", "person")}
    for person in range(people):
        for speed, activity in enumerate(ACTIVITIES):
            steps = np.arange(rows) * speed + rng.normal()
            columns["ax"] += (np.sin(steps) + rng.normal(0, 0.1, rows)).tolist()
            columns["ay"] += (9.81 + np.cos(steps)).tolist()
            columns["activity"] += [activity] * rows
            columns["person"] += [f"person{person}"] * rows
    pq.write_table(pa.table(columns), file)
    return file


def sensor_run(folder: Path, overrides: str = "") -> Path:
    """Return a run directory after a round: windows of 12 rows, and people as clients."""
    table = sensor_table(folder / "sensors.parquet")
    config = compose(
        f"model=conv1d-micro dataset=table dataset.path={table} dataset.label=activity "
        "dataset.window=12 dataset.partition=column dataset.column=person rounds=1 train.epochs=1 "
        "train.batch_size=8 dataset.validation=0.2 dataset.test=0.2 report=false "
        f"output={folder} name=run {overrides}"
    )
    server.run(InProcessGrid(config.fleet.clients), config)
    return folder / "run"
