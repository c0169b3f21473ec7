"""Forwarding: what a node is not sure of goes to a parent, within the rate that it may transfer."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from inference.serving.parent import (
    Parent,
    ParentBusyError,
    ParentDownError,
    ParentRefusedError,
)
from inference.serving.samples import Samples, halves, joined
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


@dataclass(frozen=True, eq=False)
class _Leaving:
    """A request's samples on their way to a parent."""

    samples: Samples
    answered: asyncio.Future[Answers]
    until: float


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
        self._pending: list[_Leaving] = []
        self._sending: set[asyncio.Task[None]] = set()

    @property
    def sent_bytes(self) -> int:
        return sum(parent.sent_bytes for parent in self.parents)

    async def send(self, samples: Samples, until: float = math.inf) -> Answers:
        """Return a parent's answers; raise that all are down, or that those up are busy.

        They are waited for `until` then, in the event loop's time. A parent that has not answered
        by then is not taken to be down for it: how long it has is its own `patience`.
        """
        loop = asyncio.get_running_loop()
        if not self._pending:
            loop.call_soon(self._flush)
        leaving = _Leaving(samples, loop.create_future(), until)
        self._pending.append(leaving)
        try:
            async with asyncio.timeout_at(None if math.isinf(until) else until):
                return await leaving.answered
        except TimeoutError:
            raise ParentDownError("no parent answered in time") from None

    def _flush(self) -> None:
        pending, self._pending = self._pending, []
        groups: dict[object, list[_Leaving]] = {}
        for each in pending:
            group = groups.setdefault(each.samples.key, [])
            count = sum(len(other.samples) for other in group) + len(each.samples)
            if count > self.most and group:
                self._send(group)
                group = groups[each.samples.key] = []
            group.append(each)
        for group in groups.values():
            self._send(group)

    def _send(self, group: list[_Leaving]) -> None:
        task = asyncio.create_task(self._deliver(group))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _deliver(self, group: list[_Leaving]) -> None:
        """Ask for a group together, and give each of it its answers.

        If that is refused its halves are asked for, so that one that is not taken fails alone.
        """
        until = max(each.until for each in group)
        samples = joined([each.samples for each in group])
        try:
            answers = await (self._ask(samples, until) if group[1:] else self._all(samples, until))
        except Exception as error:
            if isinstance(error, ParentRefusedError) and group[1:]:
                middle = len(group) // 2
                await self._deliver(group[:middle])
                await self._deliver(group[middle:])
                return
            for each in group:
                if not each.answered.done():
                    each.answered.set_exception(error)
            return
        start = 0
        for each in group:
            end = start + len(each.samples)
            if not each.answered.done():
                each.answered.set_result(answers.rows(slice(start, end)))
            start = end

    async def _all(self, samples: Samples, until: float) -> Answers:
        """Ask for the samples of one request: together, or by halves where that is refused."""
        try:
            return await self._ask(samples, until)
        except ParentRefusedError as error:
            log.warning("parent refused %d samples: %s", len(samples), error)
            if len(samples) == 1:
                raise
        first, second = halves(samples)
        return Answers.joined(await self._all(first, until), await self._all(second, until))

    async def _ask(self, samples: Samples, until: float) -> Answers:
        tried: set[str] = set()
        loop = asyncio.get_running_loop()
        while parent := self._next(len(samples), tried):
            tried.add(parent.name)
            try:
                return await parent.ask(samples, until - loop.time())
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
