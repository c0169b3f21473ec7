"""Handles Ctrl-C and similar signals: at once where that is safe, else at the next check."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(BaseException):  # not an Exception, like KeyboardInterrupt: no client's failure
    """This process was asked to stop."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number


class StopRequest:
    """Remembers that a stop was asked for.

    Unless it acts at once, a second request cannot interrupt the clean-up.
    """

    def __init__(self, at_once: bool = False) -> None:
        self._at_once = at_once
        self._number: int | None = None

    def check(self) -> None:
        """Raise `Stopped` if a stop was asked for."""
        if self._number is not None:
            raise Stopped(self._number)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self._number = self._number or number
        if self._at_once:
            self.check()


@contextmanager
def stop_request(at_once: bool = False) -> Iterator[StopRequest]:
    """Within the block, make a stop signal raise `Stopped` at the next `check`, or at once."""
    request = StopRequest(at_once)
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores it
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, request._hear) for number in numbers}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
