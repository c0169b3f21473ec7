"""For which classes each level took the examples of the newest test on the server.

A matrix has the square of the classes in it: metrics.jsonl would grow by all of them with every
test. So confusion.json holds those of the newest one, and lines have the right answers by class.

    {"round": 20, "levels": {"1": [[33, 0], [2, 34]]}}

A row is of the examples of a class, and a column of an answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict, cast

from protocol.documents import read_json
from server_app.record.files import write_text
from server_app.record.metrics import Count, RoundMetrics


class Confusion(TypedDict):
    """The matrices of one round's test, of each level."""

    round: int
    levels: dict[str, list[list[Count]]]  # by the level's name: how often, by class and answer


def confusion_of(metrics: Mapping[str, Any]) -> Confusion | None:
    """Return the matrices of a round; None where it had no test that tells classes apart."""
    levels: Mapping[str, Any] = metrics.get("levels", {})
    found = {name: level["confusion"] for name, level in levels.items() if "confusion" in level}
    return {"round": metrics["round"], "levels": found} if found else None


def without_confusion(metrics: RoundMetrics) -> RoundMetrics:
    """Return a round as its line has it."""
    levels: Mapping[str, Any] = metrics.get("levels", {})
    if not any("confusion" in level for level in levels.values()):
        return metrics
    kept = {
        name: {key: value for key, value in level.items() if key != "confusion"}
        for name, level in levels.items()
    }
    return cast(RoundMetrics, {**metrics, "levels": kept})


def write_confusion(file: Path, found: Confusion) -> None:
    """Write the newest matrices in the place of those before, a line for each level."""
    rows = (f" {json.dumps(name)}: {json.dumps(each)}" for name, each in found["levels"].items())
    levels = ",\n".join(rows)
    write_text(file, f'{{"round": {found["round"]}, "levels": {{\n{levels}\n}}}}\n')


def read_confusion(file: Path) -> Confusion | None:
    """Return what confusion.json says, None where there is none; `DocumentError` if damaged."""
    try:
        found: Confusion = read_json(file, Confusion)
    except FileNotFoundError:
        return None
    return found
