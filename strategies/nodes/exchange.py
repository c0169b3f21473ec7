"""Messages out and replies in, a few at a time, so that memory does not grow with the fleet."""

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
"""Seconds between two looks for replies."""
PAUSE_SHARE, PAUSE_PER_LOOK = 0.02, 4.0
"""A pause, as a share of the time since the last reply, and of what a look for replies took."""
ALLOWANCE = 2**19
"""Bytes that a reply may have over its message: it holds no more than the slice that was sent, and
which of the classes, or words, its client has."""
LONGEST_REASON = 20_000
"""Letters of an error, from its end, that are looked at."""

To = TypeVar("To")


@dataclass(frozen=True)
class Reply(Generic[To]):
    """An answer, or why there is none."""

    to: To
    message: Message | None
    failure: str | None = None
    detail: str = ""
    refused: bool = False
    """Whether there was an answer, but none that may be looked at: `failure` says why."""


def stream(
    grid: Grid,
    outgoing: Iterable[tuple[To, Message]],
    in_flight: int,
    deadline: float = 0.0,
    silence: float = math.inf,
) -> Iterator[Reply[To]]:
    """Send messages, at most `in_flight` under way, and yield each reply as it arrives.

    A message is made when there is room for it. After `deadline` seconds (0: never) whoever has
    not answered is late, what was not sent is not, and what was not fetched yet expires: a node
    that comes back does not start with the work of a round that is over. It is late, too, when
    nobody has answered for `silence` seconds, or for twice the time of the first answer. A reply
    that was there by then is taken; one that a node has begun to upload is late.
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
        for step in (mailbox.look, mailbox.pull):  # messages expire soon, announced replies do not
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
        elif pending:  # sleep a little of what was waited: so little is lost, and few calls made
            pause = max(PAUSE_SHARE * (now - heard), PAUSE_PER_LOOK * (now - looked))
            pause = min(max(SHORTEST_PAUSE, pause), LONGEST_PAUSE)
            time.sleep(min(pause, max(0.0, end - now)))


Key = tuple[int, str]
"""Of a message in Flower's own loop: the node that it goes to, and its group there."""


@dataclass(frozen=True)
class Sent(Generic[To]):
    """A message that Flower's own loop has sent: whom to, and how large its reply may be."""

    to: To
    largest_reply: int


def sent(outgoing: Iterable[tuple[To, Message]], pending: dict[Key, Sent[To]]) -> Iterator[Message]:
    """Yield messages for Flower's own loop to send, and note which replies belong to them."""
    for to, message in outgoing:
        key = (message.metadata.dst_node_id, message.metadata.group_id)
        pending[key] = Sent(to, footprint(message.content) + ALLOWANCE)
        yield message


def received(messages: Iterable[Message], pending: dict[Key, Sent[To]]) -> Iterator[Reply[To]]:
    """Yield the replies that Flower's own loop has received; whoever did not answer is late.

    Messages may still be sent while replies come: a grid may do both by turns.
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
    """Return the reply to one message, if this step towards it finds that it has come.

    They are pulled one by one: Flower puts messages together from what nodes have sent, and one
    that cannot be put together would take all others that were pulled with it along.
    """
    try:
        with reading("a message", "unreadable"):
            found = step(identity, most)
    except ProtocolError as error:
        return Reply(to, None, error.reason, str(error), refused=True)
    return _checked(to, found, most) if found is not None else None


def _checked(to: To, found: Found, most: int) -> Reply[To]:
    """Return a message as a reply, or why it may not be looked at."""
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
    """Return the last line that says something: of a traceback, or of anything a client sends."""
    lines = (printable(line).strip() for line in reversed((reason or "").splitlines()))
    return next(filter(None, lines), "")
