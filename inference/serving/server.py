"""Serves one node as a process: HTTPS with uvicorn, until it is told to stop."""

from __future__ import annotations

import signal
import sys
from dataclasses import replace
from pathlib import Path

import torch

from inference.serving.app import make_app
from inference.serving.batching import Batcher
from inference.serving.node import Node, computing
from inference.serving.node_part import read_part
from inference.serving.settings import ServeSettings, check_certificate, forwarder_of, limit_of

LAST_SECONDS = 15
"""Seconds in which a stopping node finishes its requests."""
MOST_CONNECTIONS = 1000


def serve(folder: Path, settings: ServeSettings) -> None:
    """Serve a node's part until SIGTERM or SIGINT; requests that have arrived are answered."""
    import uvicorn

    from inference.serving.connections import PATIENCE, BriefConnection

    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    check_certificate(settings)
    facts, part = read_part(folder)
    if settings.threshold is not None:
        facts = replace(facts, threshold=settings.threshold)
    forwarder, client = forwarder_of(facts, settings)
    batcher = Batcher(computing(facts, part), settings.batch, settings.wait, settings.most_waiting)
    node = Node(
        facts,
        batcher,
        forwarder,
        limit_of(facts, settings),
        settings.batch,
        lambda: batcher.waiting,
    )

    async def close() -> None:
        await batcher.close()
        await client.aclose()

    config = uvicorn.Config(
        make_app(node, settings.token, close),
        host=settings.host,
        port=settings.port,
        ssl_certfile=settings.certificate,
        ssl_keyfile=settings.key,
        http=BriefConnection,  # h11 limits the size of headers, httptools does not
        timeout_keep_alive=int(2 * PATIENCE),  # `BriefConnection` closes idle connections first
        h11_max_incomplete_event_size=32 * 1024,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=LAST_SECONDS,
        log_level="warning",
        access_log=False,
        server_header=False,
    )
    # After stopping, uvicorn raises the signal once more: it then ends the process normally.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    uvicorn.Server(config).run()
