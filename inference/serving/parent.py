"""A parent, as its child knows it: asked while it answers, and left alone for a while if not."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import httpx

from inference.serving.refusal import RefusedError
from inference.serving.samples import Samples
from inference.serving.wire import MEDIA_TYPE, Answers, pack

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
"""Seconds that a parent is left alone for after a failure: twice as long after each."""


class ParentDownError(Exception):
    """A parent that does not answer, or not with answers."""


class ParentBusyError(Exception):
    """A parent that takes no more for now."""


@dataclass(frozen=True)
class Address:
    """Where a parent is, and what it is told to answer."""

    url: str
    token: str


class Parent:
    """Sends samples to a parent, and remembers how that went."""

    def __init__(
        self,
        name: str,
        address: Address,
        client: httpx.AsyncClient,
        half: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name, self.client, self.half, self.clock = name, client, half, clock
        self.url = address.url.rstrip("/")
        self.headers = {
            "Authorization": f"Bearer {address.token}",
            "Content-Type": MEDIA_TYPE,
        }
        self.sent_bytes = 0
        self._failures, self._closed_until = 0, 0.0

    @property
    def up(self) -> bool:
        """Return whether its last answer was one."""
        return self._failures == 0

    @property
    def open(self) -> bool:
        """Return whether it may be asked now."""
        return self.clock() >= self._closed_until

    async def ask(self, samples: Samples) -> Answers:
        """Return its answers, which may be those of its own parents.

        While it is down only one request at a time tries whether it is back.
        """
        if not self.up:
            self._closed_until = self.clock() + LONGEST_PAUSE
        body = pack(samples.features, self.half)
        self.sent_bytes += len(body)
        url = f"{self.url}/v1/continue/{samples.start}"
        try:
            response = await self.client.post(url, content=body, headers=self.headers)
            if response.status_code in (429, 503):
                self._closed_until = self.clock() + _seconds(response.headers.get("Retry-After"))
                raise ParentBusyError(self.name)
            if response.status_code != 200:
                raise ParentDownError(
                    f"{self.name} says {response.status_code}: {response.text[:200]}"
                )
            answers = Answers.unpack(response.content, len(samples))
        except (httpx.HTTPError, RefusedError) as error:
            self._failed()
            raise ParentDownError(f"{self.name}: {type(error).__name__} {error}") from None
        except ParentDownError:
            self._failed()
            raise
        self._failures, self._closed_until = 0, 0.0
        return answers

    def _failed(self) -> None:
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(self._failures, 16))
        self._failures += 1
        self._closed_until = self.clock() + pause


def _seconds(retry_after: str | None) -> float:
    """Return how long to wait before the next try, within bounds."""
    try:
        return min(LONGEST_PAUSE, max(FIRST_PAUSE, float(retry_after or 0)))
    except ValueError:
        return FIRST_PAUSE
