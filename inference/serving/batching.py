"""Batches waiting requests: those that arrive during a computation are computed together."""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from inference.serving.refusal import BusyError
from inference.serving.samples import Compute, Computed, Samples, compute_all


class Batching(Protocol):
    """Computes a request's samples, together with those of other requests."""

    async def __call__(self, samples: Samples) -> Computed: ...


@dataclass(frozen=True, eq=False)
class _Waiting:
    samples: Samples
    done: asyncio.Future[Computed]


class Batcher:
    """Computes waiting requests in one thread, so that the event loop stays free.

    A batch has up to `most` samples, and waits up to `wait` seconds for them. If more than
    `most_waiting` samples wait, requests are refused.
    """

    def __init__(
        self, compute: Compute, most: int = 64, wait: float = 0.0, most_waiting: int = 1024
    ) -> None:
        self.compute, self.most, self.wait, self.most_waiting = compute, most, wait, most_waiting
        self.waiting = 0
        """Samples that wait or are being computed."""
        self._queue: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "compute")
        self._running: asyncio.Task[None] | None = None

    async def __call__(self, samples: Samples) -> Computed:
        """Return the results of a request's samples; raise `BusyError` if too many samples wait."""
        if self.waiting and self.waiting + len(samples) > self.most_waiting:
            raise BusyError(
                f"{self.waiting} samples wait, of {self.most_waiting} at most", retry_after=1
            )
        if self._running is None:
            self._running = asyncio.create_task(self._run())
        self.waiting += len(samples)
        done: asyncio.Future[Computed] = asyncio.get_running_loop().create_future()
        self._queue.append(_Waiting(samples, done))
        self._arrived.set()
        try:
            return await done
        finally:
            self.waiting -= len(samples)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._arrived.wait()
            if self.wait:
                await asyncio.sleep(self.wait)
            batch = self._next()
            if not batch:
                continue
            samples = [each.samples for each in batch]
            found = await loop.run_in_executor(self._thread, compute_all, self.compute, samples)
            for each, result in zip(batch, found, strict=True):
                if each.done.done():  # the caller has gone
                    continue
                if isinstance(result, Exception):
                    each.done.set_exception(result)
                else:
                    each.done.set_result(result)

    def _next(self) -> list[_Waiting]:
        """Take the oldest waiting requests, up to a batch and at least one.

        No request is larger than a batch. Requests whose caller has gone are skipped.
        """
        batch, samples = list[_Waiting](), 0
        while self._queue and (not batch or samples + len(self._queue[0].samples) <= self.most):
            taken = self._queue.popleft()
            if taken.done.done():  # the caller has gone
                continue
            batch.append(taken)
            samples += len(taken.samples)
        if not self._queue:
            self._arrived.clear()
        return batch

    async def close(self) -> None:
        """Stop; no request waits any more."""
        if self._running is not None:
            self._running.cancel()
        self._thread.shutdown(wait=False)
