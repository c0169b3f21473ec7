"""Tells expected errors in one line of Flower's log; all others keep their traceback.

Flower logs all that a ServerApp or a ClientApp raises with its traceback. Errors of nestfl's own
classes say in one sentence what is wrong and what to change: a traceback would hide it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import plugins
from protocol.printable import printable

LONGEST = 2000
"""Characters of an error that are logged."""


def shorten(log: logging.Logger) -> None:
    """Log expected errors without their traceback from now on."""
    log.addFilter(_in_one_line)  # once, however often it is asked for


def told(error: BaseException) -> str | None:
    """Return an expected error in one line, with causes that say more; None for any other.

    What is raised in the code of a plugin is for its author, and keeps its traceback.
    """
    if not plugins.is_ours(type(error)) or plugins.where_in_plugins(error) is not None:
        return None
    line = _said(error)
    for cause in _causes(error):
        if _told(cause) not in line and is_expected(cause):
            line += f" ({_said(cause)})"
    return printable(line, LONGEST)


def is_expected(error: BaseException) -> bool:
    """Return whether an error's message says what is wrong, as nestfl's own and the system's do."""
    return plugins.is_ours(type(error)) or isinstance(error, OSError)


def _in_one_line(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    line = told(error) if error is not None else None
    if line is not None:
        record.msg, record.args = f"{record.getMessage()}: {line}", ()
        record.exc_info = record.exc_text = None
    return True


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {_told(error)}"


def _told(error: BaseException) -> str:
    return " ".join(str(error).split())


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause = error.__cause__
    while cause is not None:
        yield cause
        cause = cause.__cause__
