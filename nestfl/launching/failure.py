"""Finds the reason of a run's failure in Flower's log, and states it in a few lines."""

from __future__ import annotations

import re

from protocol.printable import printable

LOG_PREFIX = re.compile(r"(DEBUG|INFO|WARNING|ERROR) *:")
MODULE = re.compile(r"^(?:\w+\.)+(?=\w+(?::|$))")  # of an error's class
TRACEBACK = "Traceback (most recent call last):"
SERVER_FAILED = "Simulation raised an exception"
CHAINED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)
MOST_LINES, LONGEST_LINE = 10, 2000


def reason(log: str) -> list[str]:
    """Return the error that ended the ServerApp; without one, the log's last lines."""
    lines = shown(log)
    tail = [line for line in lines if line][-MOST_LINES:]
    return _exception(lines) or ["It ended without a result; the log's last lines:", *tail]


def shown(text: str) -> list[str]:
    """Return the lines of a text made safe for a terminal: part of it comes from clients."""
    return [printable(line, LONGEST_LINE).rstrip() for line in text.splitlines()]


def _exception(lines: list[str]) -> list[str]:
    """Return the ServerApp's last error, and causes with more detail, without tracebacks."""
    started = [at for at, line in enumerate(lines) if SERVER_FAILED in line]
    if not started:
        return []
    in_one_line = lines[started[-1]].partition(f"{SERVER_FAILED}: ")[2]  # protocol/failures.py
    if in_one_line:
        return [in_one_line]
    errors: list[list[str]] = []
    for line in lines[started[-1] + 1 :]:
        if LOG_PREFIX.match(line):
            break
        if line.strip() == TRACEBACK:
            errors.append([])
        elif errors and line and line not in CHAINED and (errors[-1] or line[0] != " "):
            errors[-1].append(line)
    told: list[str] = []
    for error in reversed(errors):
        if not told or not _repeats(error, told):
            told += [MODULE.sub("", error[0]), *error[1:]] if error else []
    return told[:MOST_LINES]


def _repeats(cause: list[str], told: list[str]) -> bool:
    """Return whether an error's text already includes its cause's, as our own errors' does."""
    return " ".join(cause).partition(": ")[2] in " ".join(told)
