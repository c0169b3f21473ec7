"""Forwarding: what a node is not sure of goes to a parent, within the rate that it may transfer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence

from inference.serving.parent import Parent, ParentBusyError, ParentDownError
from inference.serving.samples import Samples, joined
from inference.serving.wire import Answers

log = logging.getLogger("nestfl.serve")


class TransferLimit:
    """Up to so many samples a second, of which up to one second's may go at once."""

    def __init__(self, rate: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate, self.clock = rate, clock
        self._left, self._then = max(1.0, rate or 0.0), clock()

    def take(self, wanted: int) -> int:
        """Return how many of the samples may go now: none where the rate is 0."""
        if self.rate is None:
            return wanted
        now = self.clock()
        self._left = min(max(1.0, self.rate), self._left + self.rate * (now - self._then))
        self._then = now
        taken = min(wanted, int(self._left)) if self.rate else 0
        self._left -= taken
        return taken


class Forwarder:
    """Sends samples to the parents by their shares, and to another one where one is down.

    What comes from one batch in one turn of the event loop goes in one message of up to `most`.
    """

    def __init__(
        self, parents: Sequence[Parent], shares: Mapping[str, float], most: int = 64
    ) -> None:
        self.parents, self.most = parents, most
        self._shares = {parent.name: shares.get(parent.name, 1.0) for parent in parents}
        self._owed = dict.fromkeys(self._shares, 0.0)
        self._pending: list[tuple[Samples, asyncio.Future[Answers]]] = []
        self._sending: set[asyncio.Task[None]] = set()

    @property
    def sent_bytes(self) -> int:
        return sum(parent.sent_bytes for parent in self.parents)

    async def send(self, samples: Samples) -> Answers:
        """Return a parent's answers; raise that all are down, or that those up are busy."""
        loop = asyncio.get_running_loop()
        if not self._pending:
            loop.call_soon(self._flush)
        answered: asyncio.Future[Answers] = loop.create_future()
        self._pending.append((samples, answered))
        return await answered

    def _flush(self) -> None:
        pending, self._pending = self._pending, []
        groups: dict[object, list[tuple[Samples, asyncio.Future[Answers]]]] = {}
        for each in pending:
            group = groups.setdefault(each[0].key, [])
            if sum(len(samples) for samples, _ in group) + len(each[0]) > self.most and group:
                self._send(group)
                group = groups[each[0].key] = []
            group.append(each)
        for group in groups.values():
            self._send(group)

    def _send(self, group: list[tuple[Samples, asyncio.Future[Answers]]]) -> None:
        task = asyncio.create_task(self._deliver(group))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _deliver(self, group: list[tuple[Samples, asyncio.Future[Answers]]]) -> None:
        """Ask for a group together, and give each of it its answers."""
        try:
            answers = await self._ask(joined([samples for samples, _ in group]))
        except Exception as error:
            for _, answered in group:
                if not answered.done():
                    answered.set_exception(error)
            return
        start = 0
        for samples, answered in group:
            if not answered.done():
                answered.set_result(answers.rows(slice(start, start + len(samples))))
            start += len(samples)

    async def _ask(self, samples: Samples) -> Answers:
        tried: set[str] = set()
        while parent := self._next(len(samples), tried):
            tried.add(parent.name)
            try:
                return await parent.ask(samples)
            except ParentBusyError:
                continue
            except ParentDownError as error:
                log.warning("parent down: %s", error)
        if any(parent.up for parent in self.parents):  # and has said that it takes no more
            raise ParentBusyError("no parent takes more")
        raise ParentDownError("no parent is up")

    def _next(self, count: int, tried: set[str]) -> Parent | None:
        """Return the parent that is furthest behind its share, of those that may be asked."""
        choices = [each for each in self.parents if each.open and each.name not in tried]
        if not choices:
            return None
        total = sum(self._shares[each.name] for each in choices)
        for each in choices:
            self._owed[each.name] += count * self._shares[each.name] / total
        chosen = max(choices, key=lambda each: self._owed[each.name])
        self._owed[chosen.name] -= count
        return chosen
