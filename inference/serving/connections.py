"""Connections to a node: uvicorn's, with a limit on their number and their idle time.

A connection without a complete request head is closed after a while, however slowly its bytes
arrive. Connections beyond the limit are refused. Idle ones are cut off when the node stops, without
a shutdown handshake.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

PATIENCE = 30.0
"""Seconds without a new request after which a connection is closed; it may take twice as long.

Clients drop idle connections sooner (httpx: after 5 seconds), so that none is closed while its next
request is on the way.
"""


class BriefConnection(H11Protocol):
    """A connection that is closed unless it sends requests."""

    _asked: Any = None
    """The last request that was seen."""
    _check: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.limit_concurrency is not None and len(self.connections) > self.limit_concurrency:
            transport.abort()
        else:
            self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._check is not None:
            self._check.cancel()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Finish the answer under way, if there is one; otherwise close at once."""
        if self._idle and not self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            super().shutdown()

    @property
    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _watch(self) -> None:
        self._check = self.loop.call_later(PATIENCE, self._look)

    def _look(self) -> None:
        if self._idle and self.cycle is self._asked:
            self.transport.abort()
        else:
            self._asked = self.cycle
            self._watch()
