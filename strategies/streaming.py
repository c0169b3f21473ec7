"""Messages out and replies in, a window at a time, so that memory does not grow with the fleet."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from flwr.app import Message
from flwr.serverapp import Grid

from protocol.printable import printable

SHORTEST_PAUSE, LONGEST_PAUSE = 0.01, 0.5
"""Seconds between two looks for replies."""
PAUSE_SHARE = 0.02
"""A pause, as a share of the time since the last reply."""

To = TypeVar("To")


@dataclass(frozen=True)
class Reply(Generic[To]):
    """An answer, or why there is none."""

    to: To
    message: Message | None
    failure: str | None = None
    detail: str = ""


def stream(
    grid: Grid, outgoing: Iterable[tuple[To, Message]], window: int, deadline: float = 0.0
) -> Iterator[Reply[To]]:
    """Send messages, at most `window` in flight, and give each reply as it arrives.

    A message is made when there is room for it. After `deadline` seconds (0: never) whoever has
    not answered is late, what was not sent is not, and what was not fetched yet expires: a node
    that comes back does not start with the work of a round that is over.
    """
    pending: dict[str, To] = {}
    waiting = iter(outgoing)
    end = time.monotonic() + deadline if deadline else float("inf")
    heard, more = time.monotonic(), True
    while more or pending:
        while more and len(pending) < window and time.monotonic() < end:
            following = next(waiting, None)
            more = following is not None
            if following is not None:
                to, message = following
                if deadline:
                    message.metadata.ttl = max(0.0, end - time.monotonic()) + 1.0
                sent = [identity for identity in grid.push_messages([message]) if identity]
                if sent:
                    pending[sent[0]] = to
                else:
                    yield Reply(to, None, "unreachable")
        if time.monotonic() >= end:
            yield from (Reply(to, None, "late") for to in pending.values())
            return
        arrived = list(grid.pull_messages(list(pending))) if pending else []
        for answer in arrived:
            yield _reply(pending.pop(answer.metadata.reply_to_message_id), answer)
        now = time.monotonic()
        if arrived:
            heard = now
        elif pending:  # sleep a little of what was waited: so little is lost, and few calls made
            pause = min(max(SHORTEST_PAUSE, PAUSE_SHARE * (now - heard)), LONGEST_PAUSE)
            time.sleep(min(pause, max(0.0, end - now)))


FAILURES = {
    0: "crashed",
    1: "app-not-loaded",
    2: "raised",
    3: "expired",
    4: "reply-lost",
    5: "node-gone",
    6: "mod-refused",
    7: "bad-app",
    8: "crashed",
}


def _reply(to: To, message: Message) -> Reply[To]:
    if not message.has_error():
        return Reply(to, message)
    error = message.error
    return Reply(to, None, FAILURES.get(error.code, f"error-{error.code}"), _brief(error.reason))


def _brief(reason: str | None) -> str:
    """The last line that says something: a simulation sends whole tracebacks, a client anything."""
    lines = (printable(line).strip() for line in reversed((reason or "").splitlines()))
    return next(filter(None, lines), "")
