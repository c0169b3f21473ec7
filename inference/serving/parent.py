"""A parent as its child sees it: asked while it answers, avoided for a while after a failure."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from inference.serving.refusal import MalformedError
from inference.serving.samples import Samples
from inference.serving.wire import MEDIA_TYPE, TIME_LEFT, Answers, largest_answers, pack

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds for which a parent is avoided after a failure: doubled with each one, up to the limit."""


class ParentError(Exception):
    """Samples that a parent did not answer."""


class ParentDownError(ParentError):
    """A parent that does not answer, or sends an invalid answer."""


class ParentBusyError(ParentError):
    """A parent that accepts no more samples for now."""


class ParentRefusedError(ParentError):
    """A healthy parent that refuses this message."""


@dataclass(frozen=True)
class Address:
    """The address of a parent, and the token that it requires."""

    url: str
    token: str


class Parent:
    """Sends samples to a parent, and records its failures.

    The complete answer has to arrive within `patience` seconds.
    """

    def __init__(
        self,
        name: str,
        address: Address,
        client: httpx.AsyncClient,
        half: bool = False,
        clock: Callable[[], float] = time.monotonic,
        patience: float = 2.0,
        classes: int | None = None,
    ) -> None:
        self.name, self.client, self.half, self.clock = name, client, half, clock
        self.patience, self.classes = patience, classes
        self.url = address.url.rstrip("/")
        self.headers = {
            "Authorization": f"Bearer {address.token}",
            "Content-Type": MEDIA_TYPE,
            "Accept-Encoding": "identity",
        }
        self.sent_bytes = 0
        self._failures, self._closed_until = 0, 0.0

    @property
    def up(self) -> bool:
        """True if its last answer was valid."""
        return self._failures == 0

    @property
    def open(self) -> bool:
        """True if it may be asked now."""
        return self.clock() >= self._closed_until

    async def ask(self, samples: Samples, left: float = math.inf) -> Answers:
        """Return its answers, which may come from its own parents.

        The parent is told the `left` seconds, so that it answers by itself before the child gives
        up. While it is down, only one request at a time tests whether it is back.
        """
        failures = self._failures
        if failures:
            self._closed_until = self.clock() + LONGEST_PAUSE
        try:
            async with asyncio.timeout(self.patience):
                status, retry_after, content = await self._post(samples, min(left, self.patience))
            if status == 200:
                answers = Answers.unpack(content, len(samples), self.classes)
                self._failures, self._closed_until = 0, 0.0
                return answers
        except httpx.PoolTimeout:  # our own connections are exhausted: the parent may be well
            raise ParentBusyError(self.name) from None
        except Exception as error:  # for any error the samples can be answered here
            self._failed(failures)
            raise ParentDownError(f"{self.name}: {type(error).__name__} {error}") from None
        said = f"{self.name} says {status}: {content[:200].decode(errors='replace')}"
        if status in (429, 503):
            self._failures = 0 if status == 429 else self._failures
            self._closed_until = self.clock() + _seconds(retry_after)
            raise ParentBusyError(said)
        if status in (400, 413, 422):
            self._failures, self._closed_until = 0, 0.0
            raise ParentRefusedError(said)
        self._failed(failures)
        raise ParentDownError(said)

    async def _post(self, samples: Samples, left: float) -> tuple[int, str | None, bytes]:
        """Return the status, the time of the next try, and the body, which is limited in size."""
        body = pack(samples.features, self.half)
        self.sent_bytes += len(body)
        headers = {**self.headers, TIME_LEFT: f"{max(left, 0.001):.3f}"}
        # The size is limited while reading: a faulty parent could send without end.
        url, most = f"{self.url}/v1/continue/{samples.start}", largest_answers(len(samples))
        content = bytearray()
        async with self.client.stream("POST", url, content=body, headers=headers) as response:
            async for chunk in response.aiter_raw():
                content += chunk
                if len(content) > most:
                    raise MalformedError(f"an answer of over {most} bytes")
            return response.status_code, response.headers.get("Retry-After"), bytes(content)

    def _failed(self, before: int) -> None:
        """Record a failure, unless one was recorded since the request began: it is the same one."""
        if self._failures != before:
            return
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(self._failures, 16))
        self._failures += 1
        self._closed_until = self.clock() + pause


def _seconds(retry_after: str | None) -> float:
    """Return the seconds until the next try, within bounds."""
    try:
        return min(LONGEST_PAUSE, max(FIRST_PAUSE, float(retry_after or 0)))
    except ValueError:
        return FIRST_PAUSE
