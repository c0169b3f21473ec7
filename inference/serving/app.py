"""The HTTP interface of a node: checks the token, reads bodies, and sends answers or errors."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from inference.serving.node import Node
from inference.serving.refusal import (
    BusyError,
    MalformedError,
    MisplacedError,
    RefusedError,
    TooLargeError,
    TooSlowError,
    UnauthorizedError,
)
from inference.serving.wire import MEDIA_TYPE, TIME_LEFT

PATIENCE = 20.0
"""Seconds within which a body has to arrive."""
MOST_BODIES = 16
"""Largest bodies that may be in memory while they arrive; waiting samples count separately."""

LAST_UNIT = 99999
LONGEST_UNIT = 40
"""Letters of a unit that are read, and said again where there is no such unit."""

log = logging.getLogger("nestfl.serve")


def make_app(node: Node, token: str, close: Callable[[], Awaitable[None]] | None = None) -> FastAPI:
    """Return the application of a node; `close` is awaited when it has stopped."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        if close is not None:
            await close()

    bodies = Bodies(MOST_BODIES * max(map(node.largest_body, node.facts.takes)))
    app = FastAPI(
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,  # a redirect would name the Host that the caller sent
    )

    @app.post("/v1/predict")
    async def predict(request: Request) -> Response:
        return await answered(request)

    @app.post("/v1/continue/{unit}")
    async def go_on(request: Request, unit: str) -> Response:
        return await answered(request, unit)

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        check_token(request, token)
        return PlainTextResponse(node.metrics_text())

    @app.get("/health")
    async def health() -> Response:
        parents = {parent.name: parent.up for parent in node.forwarder.parents}
        facts = node.facts
        return JSONResponse({"name": facts.name, "exit": facts.exit, "parents_up": parents})

    async def answered(request: Request, unit: str | None = None) -> Response:
        check_token(request, token)
        left = time_left(request)
        start = 0 if unit is None else unit_of(unit)
        samples = node.read(await bodies.read(request, node.largest_body(start)), start)
        return Response(await node.answer(samples, left), media_type=MEDIA_TYPE)

    @app.exception_handler(RefusedError)
    async def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, RefusedError)
        node.metrics.refused[error.reason] += 1
        # Part of the body may be unread, so the connection cannot be used again.
        headers = {"Connection": "close"} if error.status in (401, 408, 413) else {}
        if error.retry_after is not None:
            headers["Retry-After"] = f"{error.retry_after:g}"
        if error.status == UnauthorizedError.status:
            headers["WWW-Authenticate"] = "Bearer"
        return JSONResponse({"error": str(error)}, error.status, headers)

    @app.exception_handler(Exception)
    async def fail(request: Request, error: Exception) -> Response:
        node.metrics.refused["error"] += 1
        return JSONResponse({"error": "the node failed to answer this request"}, 500)

    return app


def unit_of(text: str) -> int:
    """Return the unit that a path names."""
    number = int(text) if text.isascii() and text.isdigit() and len(text) < LONGEST_UNIT else 0
    if not 0 < number <= LAST_UNIT:
        raise MisplacedError(
            f"unit {text[:LONGEST_UNIT]!r}: expected the number of a unit, 1 to {LAST_UNIT}"
        )
    return number


def check_token(request: Request, token: str) -> None:
    """Raise unless a request has the token, compared in constant time."""
    given = request.headers.get("authorization", "")
    if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
        raise UnauthorizedError("no token of this node: send Authorization: Bearer TOKEN")


def time_left(request: Request) -> float:
    """Return the seconds that the caller waits for the answer; infinity if it does not say."""
    said = request.headers.get(TIME_LEFT, "inf")
    try:
        left = float(said)
    except ValueError:
        left = 0.0
    if not left > 0:
        raise MalformedError(f"{TIME_LEFT} {said[:40]!r}: expected seconds, more than 0")
    return left


class Bodies:
    """Reads bodies, up to `most` bytes of all of them together."""

    def __init__(self, most: int) -> None:
        self.most, self.held = most, 0

    async def read(self, request: Request, most: int) -> bytes:
        """Return a request's body; stop reading one that is too large or too slow."""
        declared = request.headers.get("content-length")
        if declared is not None and declared.isdigit() and int(declared) > most:
            raise TooLargeError(f"a body of {declared} bytes: expected up to {most}")
        body = bytearray()
        try:
            async with asyncio.timeout(PATIENCE):
                async for chunk in request.stream():
                    body += chunk
                    self.held += len(chunk)
                    if len(body) > most:
                        raise TooLargeError(f"a body of over {most} bytes: expected up to {most}")
                    if self.held > self.most:
                        raise BusyError("too many bodies are being read", retry_after=1)
        except TimeoutError:
            raise TooSlowError(f"the body did not come within {PATIENCE:g} seconds") from None
        finally:
            self.held -= len(body)
        if not body:
            raise MalformedError("an empty body: expected tensors as safetensors")
        return bytes(body)
