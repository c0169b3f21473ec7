"""Ctrl-C and its like, heard where it is safe to stop."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(Exception):  # noqa: N818  # it is asked for, no error
    """Someone asked this process to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class StopRequest:
    """Remembers that a stop was asked for; a second request cannot cut the cleaning up."""

    def __init__(self) -> None:
        self._number: int | None = None

    def check(self) -> None:
        if self._number is not None:
            raise Stopped(self._number)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self._number = self._number or number


@contextmanager
def stop_request() -> Iterator[StopRequest]:
    """Within the block, a signal to stop raises `Stopped` at the next `check`."""
    request = StopRequest()
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, request._hear) for number in numbers}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
