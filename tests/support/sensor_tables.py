"""Tables of numbers as sensors give them: a wave for each activity, in recordings of people."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ACTIVITIES = ("rest", "walk", "run")


def sensor_table(file: Path, people: int = 4, rows: int = 48) -> Path:
    """Write a recording of so many rows for each person and activity, of two channels."""
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
