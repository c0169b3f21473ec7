"""Sends messages and receives replies, a few at a time: memory does not grow with the fleet."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from flwr.app import Error, Message
from flwr.serverapp import Grid

from protocol.printable import printable
from protocol.reading import ProtocolError, reading
from protocol.records import footprint
from strategies.nodes.pulling import Found, mailbox_of

SHORTEST_PAUSE, LONGEST_PAUSE = 0.01, 0.5
"""Shortest and longest pause, in seconds, between two looks for replies."""
PAUSE_SHARE, PAUSE_PER_LOOK = 0.02, 4.0
"""A pause as a share of the time since the last reply, and in durations of the last look."""
ALLOWANCE = 2**19
"""Bytes that a reply may have beyond its message. A reply holds no more than the slice that was
sent and the list of its client's classes or words."""
LONGEST_REASON = 20_000
"""Most characters of an error's end that are read."""

To = TypeVar("To")


@dataclass(frozen=True)
class Reply(Generic[To]):
    """A client's reply, or the reason why there is none."""

    to: To
    message: Message | None
    failure: str | None = None
    detail: str = ""
    refused: bool = False
    """True if a reply came but was refused unread; `failure` has the reason."""


def stream(
    grid: Grid,
    outgoing: Iterable[tuple[To, Message]],
    in_flight: int,
    deadline: float = 0.0,
    silence: float = math.inf,
) -> Iterator[Reply[To]]:
    """Send messages, at most `in_flight` at a time, and yield each reply as it arrives.

    A message is built when there is room for it. After `deadline` seconds (0: no deadline) the
    missing replies are late, and the rest is not sent. A message that its node has not fetched by
    then expires, so a node that comes back does not start with work of a past round.

    After the first reply, the others are also late when no reply has come for `silence` seconds or
    for twice the first reply's time, whichever is longer. A reply that is complete by then is
    taken; one whose upload has only begun is late.
    """
    mailbox = mailbox_of(grid)
    pending: dict[str, tuple[To, int]] = {}
    waiting = iter(outgoing)
    end = time.monotonic() + deadline if deadline else math.inf
    began = heard = time.monotonic()
    patience, more = math.inf, True
    while more or pending:
        while more and len(pending) < in_flight and time.monotonic() < end:
            following = next(waiting, None)
            more = following is not None
            if following is not None:
                to, message = following
                if deadline:
                    message.metadata.ttl = max(0.0, end - time.monotonic()) + 1.0
                most = footprint(message.content) + ALLOWANCE
                pushed = [identity for identity in grid.push_messages([message]) if identity]
                if pushed:
                    pending[pushed[0]] = to, most
                else:
                    yield Reply(to, None, "unreachable")
        before, looked = len(pending), time.monotonic()
        for step in (mailbox.look, mailbox.pull):  # announced replies do not expire; messages do
            for identity, (to, most) in list(pending.items()):
                reply = _pulled(step, identity, to, most)
                if reply is not None:
                    del pending[identity]
                    yield reply
        if looked >= min(end, heard + patience):
            for identity, (to, _) in pending.items():
                yield Reply(to, None, "late", mailbox.give_up(identity))
            return
        now = time.monotonic()
        if len(pending) < before:
            patience = min(patience, max(silence, 2 * (now - began)))
            heard = now
        elif pending:  # sleep a small share of the wait: little time is lost, few calls made
            pause = max(PAUSE_SHARE * (now - heard), PAUSE_PER_LOOK * (now - looked))
            pause = min(max(SHORTEST_PAUSE, pause), LONGEST_PAUSE)
            time.sleep(min(pause, max(0.0, end - now)))


Key = tuple[int, str]
"""Key of a message in Flower's own loop: its node and its message group."""


@dataclass(frozen=True)
class Sent(Generic[To]):
    """A message that Flower's own loop has sent: its receiver, and its reply's most bytes."""

    to: To
    largest_reply: int


def sent(outgoing: Iterable[tuple[To, Message]], pending: dict[Key, Sent[To]]) -> Iterator[Message]:
    """Yield messages for Flower's own loop to send, and note in `pending` who each one is for."""
    for to, message in outgoing:
        key = (message.metadata.dst_node_id, message.metadata.group_id)
        pending[key] = Sent(to, footprint(message.content) + ALLOWANCE)
        yield message


def received(messages: Iterable[Message], pending: dict[Key, Sent[To]]) -> Iterator[Reply[To]]:
    """Yield the replies from Flower's own loop, then a late one for each message without reply.

    `pending` may still grow while replies come: a grid may send and receive by turns.
    """
    for message in messages:
        asked = pending.pop((message.metadata.src_node_id, message.metadata.group_id), None)
        if asked is not None:
            yield _checked(asked.to, message, asked.largest_reply)
    yield from (Reply(asked.to, None, "late") for asked in pending.values())


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


def _pulled(
    step: Callable[[str, int], Found | None], identity: str, to: To, most: int
) -> Reply[To] | None:
    """Return the reply to one message, if this step finds that it has come.

    Replies are pulled one at a time. Flower builds a message from the bytes that a node sent; if
    one message cannot be built, all others pulled in the same call are lost with it.
    """
    try:
        with reading("a message", "unreadable"):
            found = step(identity, most)
    except ProtocolError as error:
        return Reply(to, None, error.reason, str(error), refused=True)
    return _checked(to, found, most) if found is not None else None


def _checked(to: To, found: Found, most: int) -> Reply[To]:
    """Return a message as a reply, or the reason why it was refused."""
    try:
        with reading("a message", "unreadable"):
            return _reply(to, found, most)
    except ProtocolError as error:
        return Reply(to, None, error.reason, str(error), refused=True)


def _reply(to: To, found: Found, most: int) -> Reply[To]:
    if isinstance(found, Error) or found.has_error():
        error = found if isinstance(found, Error) else found.error
        detail = _brief((error.reason or "")[-LONGEST_REASON:])
        return Reply(to, None, FAILURES.get(error.code, f"error-{error.code}"), detail)
    if (size := footprint(found.content)) > most:
        raise ProtocolError(f"{size} bytes, expected at most {most}", "too-large")
    return Reply(to, found)


def _brief(reason: str | None) -> str:
    """Return the last line of a text that is not blank, such as the error line of a traceback."""
    lines = (printable(line).strip() for line in reversed((reason or "").splitlines()))
    return next(filter(None, lines), "")
