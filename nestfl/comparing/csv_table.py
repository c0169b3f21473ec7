"""Writes a comparison's results as CSV: a row for each group and score of table.json."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from typing import Any

from nestfl.comparing.results import Target
from server_app.record.serving_settings import SERVING

NUMBERS = ("mean", "deviation", "seeds")
COMPARED = ("difference", "low", "high", "pairs", "verdict")
WIDTH = len(("score", *NUMBERS, *COMPARED))


def csv_of(found: Mapping[str, Any]) -> str:
    """Return the scores, drops, costs of the target, and cells of serving settings as CSV."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    keys = list(dict.fromkeys(key for group in found["groups"] for key in group["choices"]))
    writer.writerow([*keys, "score", *NUMBERS, *COMPARED])
    for group in found["groups"]:
        for row in _group_rows(group, found):
            values = [group["choices"].get(key, "") for key in keys]
            writer.writerow([*values, *row, *[""] * (WIDTH - len(row))])
    for each in found.get("settings", []):
        for setting, cell in each["settings"].items():
            chosen = {**each["choices"], **({SERVING: setting} if cell["own"] else {})}
            row = [f"setting {setting}", *_numbers(cell), *[""] * len(COMPARED)]
            writer.writerow([*(chosen.get(key, "") for key in keys), *row])
    return text.getvalue()


def _group_rows(group: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[list[Any]]:
    """Yield a group's rows; values that are missing stay empty."""
    for name, score in group["scores"].items():
        difference = score["difference"] or {}
        compared = [difference.get(key, "") for key in ("mean", *COMPARED[1:])]
        yield [name, *_numbers(score), *compared]
    for name, drop in group.get("drops", {}).items():
        yield [f"drop of {name}", *_numbers(drop)]
    (_, reached), *spent = group["to_target"].items()
    computation = dict(group.get("computation", {}))
    if computation:
        yield ["mace", computation.pop("mace"), "", len(group["runs"])]
    score = "" if found["target_score"] == Target.score else f" {found['target_score']}"
    for name, mean in (*spent, *computation.items()):
        if mean is not None:
            yield [f"{name} to {found['target']}{score}", mean, "", reached]


def _numbers(found: Mapping[str, Any]) -> list[Any]:
    return [found["mean"], found["deviation"], len(found["by_seed"])]
