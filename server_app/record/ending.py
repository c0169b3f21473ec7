"""How a run has ended, or that it still goes on: what its files tell, without torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from protocol.documents import DocumentError, parse_json
from server_app.record.files import (
    LAUNCHER_LOCK,
    PROGRESS_FILE,
    RECORD_LOCK,
    SUMMARY_FILE,
    lines_backwards,
)
from server_app.record.locking import in_use

How = Literal["finished", "failed", "stopped", "running"]
STOPS = ("BdbQuit", "KeyboardInterrupt", "Stopped", "SystemExit")
"""What a run ends with that someone has stopped."""


@dataclass(frozen=True)
class Ending:
    """How a run has ended, and why, where it failed."""

    how: How
    reason: str = ""


def ending_of(directory: Path) -> Ending:
    """Return how the run in a directory has ended; one that was killed says nothing of it."""
    if (directory / SUMMARY_FILE).is_file():
        return Ending("finished")
    if any(in_use(directory / lock) for lock in (RECORD_LOCK, LAUNCHER_LOCK)):
        return Ending("running")
    reason = end_reason(directory / PROGRESS_FILE)
    if reason is None or reason.partition(":")[0] in STOPS:
        return Ending("stopped")
    return Ending("failed", reason)


def end_reason(progress: Path) -> str | None:
    """Return why a run ended before its last round, if that is the last thing that it told."""
    if not progress.is_file():
        return None
    for line in lines_backwards(progress):
        try:
            event = parse_json(line, progress)
        except DocumentError:  # cut by a kill, and gone on after
            continue
        ended = isinstance(event, dict) and event.get("event") == "end"
        return str(event["reason"]) if ended and event.get("reason") else None
    return None
