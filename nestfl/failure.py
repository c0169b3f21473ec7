"""Why a run failed, in a few lines, from Flower's log."""

from __future__ import annotations

import re

ANSI_CODE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
LOG_PREFIX = re.compile(r"(DEBUG|INFO|WARNING|ERROR) *:")
TRACEBACK = "Traceback (most recent call last):"
SERVER_FAILED = "Simulation raised an exception"
MOST_LINES = 10


def reason(log: str) -> list[str]:
    """The error that ended the ServerApp, or the log's last lines where there was none."""
    lines = [line.rstrip() for line in ANSI_CODE.sub("", log).splitlines()]
    tail = [line for line in lines if line][-MOST_LINES:]
    return _exception(lines) or ["It ended without a result; the log's last lines:", *tail]


def _exception(lines: list[str]) -> list[str]:
    """The text below the last traceback of the ServerApp, without the traceback."""
    started = [at for at, line in enumerate(lines) if SERVER_FAILED in line]
    if not started:
        return []
    below = lines[started[-1] + 1 :]
    tracebacks = [at for at, line in enumerate(below) if line.strip() == TRACEBACK]
    below = below[tracebacks[-1] + 1 :] if tracebacks else below
    text: list[str] = []
    for line in below:
        if LOG_PREFIX.match(line):
            break
        if text or (line and not line.startswith(" ")):
            text.append(line)
    return [line for line in text if line][:MOST_LINES]
