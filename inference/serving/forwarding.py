"""Forwards uncertain samples to a parent, within the node's transfer rate."""

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
    """Limits samples per second; up to one second's worth may go at once."""

    def __init__(self, rate: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate, self.clock = rate, clock
        self._left, self._then = max(1.0, rate or 0.0), clock()

    def take(self, wanted: int) -> int:
        """Return the number of samples that may go now; 0 if the rate is 0."""
        if self.rate is None:
            return wanted
        now = self.clock()
        # A token bucket: it fills at the rate, up to one second's worth, at least one sample.
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
    """Sends samples to the parents by their shares, and to another parent if one is down.

    Samples that one turn of the event loop produces from a batch go in one message, of up to
    `most`.
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
        """Return a parent's answers; raise if all parents are down, or those that are up are busy.

        The answers are awaited until the event loop's time `until`. A parent that has not answered
        by then does not count as down: only its own `patience` decides that.
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
        """Send a group of requests together, and hand each one its answers.

        If the message is refused, its halves are sent separately, so that a bad request fails
        alone.
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
        """Send the samples of one request together, or by halves if they are refused."""
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
        if any(parent.up for parent in self.parents):  # a parent that is up takes no more
            raise ParentBusyError("no parent takes more")
        raise ParentDownError("no parent is up")

    def _next(self, count: int, tried: set[str]) -> Parent | None:
        """Return the parent that is furthest behind its share, among those that may be asked."""
        choices = [each for each in self.parents if each.open and each.name not in tried]
        if not choices:
            return None
        # Deficit round robin: each parent is owed its share of all samples.
        total = sum(self._shares[each.name] for each in choices)
        for each in choices:
            self._owed[each.name] += count * self._shares[each.name] / total
        chosen = max(choices, key=lambda each: self._owed[each.name])
        self._owed[chosen.name] -= count
        return chosen
