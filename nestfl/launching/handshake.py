"""Exchanges messages between a launcher and its simulation's process, as files of a folder."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nestfl.launching.request import Choice, Request

REQUEST, ANSWER, GO, RAY = "request.json", "answer.json", "go.json", "ray.json"


@dataclass(frozen=True)
class Answer:
    """The result of a run's check in the simulation's process: an error, or the run's choices."""

    error: str | None = None
    choice: Choice | None = None


@dataclass(frozen=True)
class Go:
    """The launcher's permission to begin the run."""

    run_dir: str
    command: str
    log: str


@dataclass(frozen=True)
class Head:
    """The address of the started Ray, or the error of its start."""

    address: str | None = None
    error: str | None = None


def write(folder: Path, name: str, message: Request | Answer | Go | Head) -> None:
    """Write a message; a reader sees the complete message or none."""
    unfinished = folder / f".{name}"
    unfinished.write_text(json.dumps(asdict(message), default=str), encoding="utf-8")
    os.replace(unfinished, folder / name)


def read_request(folder: Path) -> Request:
    """Return the launcher's request."""
    values = _read(folder, REQUEST)
    paths = {key: Path(values[key]) if values[key] else None for key in ("run_dir", "resume")}
    paths |= {key: Path(values[key]) for key in ("app_dir", "folder")}
    return Request(**(values | paths))


def read_answer(folder: Path) -> Answer:
    values = _read(folder, ANSWER)
    return Answer(values["error"], Choice(**values["choice"]) if values["choice"] else None)


def read_head(folder: Path) -> Head:
    """Return the message of the process that starts Ray."""
    return Head(**_read(folder, RAY))


def read_go(folder: Path) -> Go:
    return Go(**_read(folder, GO))


def _read(folder: Path, name: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / name).read_text(encoding="utf-8"))
    return values
