"""Summarises a run from its directory alone: its choices, its progress and how it has ended.

Of metrics.jsonl only the end is read, and torch is not loaded: a list has hundreds of runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from protocol.documents import DocumentError, parse_json, read_json, read_yaml
from server_app.config.saved import CONFIG_FILE
from server_app.record.files import (
    FLEET_FILE,
    LAUNCHER_LOCK,
    METRICS_FILE,
    PROGRESS_FILE,
    RECORD_LOCK,
    SUMMARY_FILE,
    in_use,
    lines_backwards,
)
from server_app.record.metrics import RoundMetrics

How = Literal["finished", "failed", "stopped", "running"]
STOPS = ("BdbQuit", "KeyboardInterrupt", "Stopped", "SystemExit")
"""Errors that end a run which the user has stopped."""


@dataclass(frozen=True)
class Ending:
    """The state of a run, and the reason if it failed."""

    how: How
    reason: str = ""


@dataclass(frozen=True)
class RunEntry:
    """A run in short: its choices, its progress and its end."""

    directory: Path
    method: str
    model: str
    data: str
    seed: int | None
    rounds: int
    of: int | None
    """Rounds that are done (`rounds`), and rounds of the whole run (`of`)."""
    worst: float | None
    mean: float | None
    """Worst and mean accuracy over the levels, at the newest test."""
    started: datetime
    ended: str
    """State of the run: finished, failed, stopped, running or damaged."""
    note: str = ""
    """Reason of a failure, or the problem with its files."""


def read_entry(directory: Path) -> RunEntry:
    """Return a run in short; unreadable values are left out, and the note says why."""
    wrong: list[str] = []
    ending = ending_of(directory)
    settled = ending.how != "running"  # a run that has just started may not have written it yet
    config = _mapping(directory / CONFIG_FILE, wrong, needed=settled)
    fleet = _mapping(directory / FLEET_FILE, wrong)
    finished = ending.how == "finished"
    scores = _mapping(directory / SUMMARY_FILE, wrong) if finished else {}
    if not scores:
        scores = _newest_scores(directory / METRICS_FILE, wrong)
    return RunEntry(
        directory=directory,
        method=_chosen(config, "strategy"),
        model=_chosen(config, "model"),
        data=_chosen(config, "dataset"),
        seed=_whole(config.get("seed")),
        rounds=_whole(scores.get("rounds")) or 0,
        of=_whole(config.get("rounds")),
        worst=_number(scores.get("worst")),
        mean=_number(scores.get("mean")),
        started=_started(directory, fleet),
        ended="damaged" if wrong else ending.how,
        note="; ".join(wrong) or ending.reason,
    )


def ending_of(directory: Path) -> Ending:
    """Return the end of the run in a directory; a killed run counts as stopped."""
    if (directory / SUMMARY_FILE).is_file():
        return Ending("finished")
    if any(in_use(directory / lock) for lock in (RECORD_LOCK, LAUNCHER_LOCK)):
        return Ending("running")
    reason = end_reason(directory / PROGRESS_FILE)
    if reason is None or reason.partition(":")[0] in STOPS:
        return Ending("stopped")
    return Ending("failed", reason)


def end_reason(progress: Path) -> str | None:
    """Return the reason of a run's early end, if that is its last event."""
    if not progress.is_file():
        return None
    for line in lines_backwards(progress):
        try:
            event = parse_json(line, progress)
        except DocumentError:  # a line that a kill cut short in a run that was resumed
            continue
        ended = isinstance(event, dict) and event.get("event") == "end"
        return str(event["reason"]) if ended and event.get("reason") else None
    return None


def _mapping(file: Path, wrong: list[str], needed: bool = False) -> Mapping[str, Any]:
    """Return the content of a YAML or JSON file; empty if it is missing or unreadable."""
    try:
        found: Mapping[str, Any] = (
            read_yaml(file, dict) if file.suffix == ".yaml" else read_json(file, dict, nan=True)
        )
    except FileNotFoundError:
        wrong += [f"there is no {file.name}"] if needed else []
        return {}
    except DocumentError as error:
        wrong.append(str(error).removeprefix(f"{file.parent}/"))
        return {}
    except OSError as error:
        wrong.append(f"{file.name} cannot be read: {error.strerror or error}")
        return {}
    return found


def _newest_scores(file: Path, wrong: list[str]) -> dict[str, Any]:
    """Return the last round, and the scores of the newest tested round."""
    found: dict[str, Any] = {}
    try:
        for text in lines_backwards(file):
            if "rounds" not in found or b'"mean"' in text:
                line = parse_json(text, file.name, RoundMetrics)
                found.setdefault("rounds", line["round"])
                if line.get("mean") is not None:
                    return {**found, "mean": line["mean"], "worst": line.get("worst")}
    except FileNotFoundError:
        pass
    except DocumentError as error:
        wrong.append(str(error))
    except OSError as error:
        wrong.append(f"{file.name} cannot be read: {error.strerror or error}")
    return found


def _started(directory: Path, fleet: Mapping[str, Any]) -> datetime:
    """Return the time of a run's first start, from its record or else from its files' age."""
    try:
        told = datetime.fromisoformat(str(fleet.get("started")))
        return told if told.tzinfo else told.replace(tzinfo=UTC)
    except ValueError:
        config = directory / CONFIG_FILE
        age = (config if config.exists() else directory).stat().st_mtime
        return datetime.fromtimestamp(age, UTC)


def _chosen(config: Mapping[str, Any], key: str) -> str:
    choice = config.get(key)
    return str(choice.get("name", "?")) if isinstance(choice, dict) else "?"


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _number(value: object) -> float | None:
    known = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if known else None  # type: ignore[arg-type]
