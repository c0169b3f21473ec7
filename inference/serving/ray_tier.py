"""Serves a node that one process cannot carry, as a deployment of Ray Serve.

Ray's proxy speaks HTTPS and distributes requests to replicas. Each replica is the node with its own
batches and its own connections to the parents. Ray starts more replicas when requests queue up.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
import torch
from fastapi import FastAPI
from ray import serve
from ray.serve.config import AutoscalingConfig, HTTPOptions

from inference.serving.app import make_app
from inference.serving.node import Node, computing
from inference.serving.node_part import read_facts, read_part
from inference.serving.refusal import BusyError
from inference.serving.samples import Compute, Computed, Samples, compute_all
from inference.serving.settings import (
    ServeError,
    ServeSettings,
    check_certificate,
    forwarder_of,
    limit_of,
)

Replicas = tuple[int, int]
"""Fewest and most replicas."""
BATCH_WAIT = 0.002
"""Default of the seconds that Ray waits for a batch to fill."""
MOST_REQUESTS = 256
"""Requests that a replica has at a time; up to `most_waiting` more wait in Ray's queue."""
WORKERS = {"worker_process_setup_hook": "nestfl.use_app"}
"""Lets Ray's workers import this module: the nestfl of each machine finds it for them."""


class RayBatcher:
    """Batches made by Ray Serve; a thread computes them, so that the event loop stays free.

    If more than `most_waiting` samples wait, requests are refused.
    """

    def __init__(self, compute: Compute, settings: ServeSettings) -> None:
        self.waiting, self.most_waiting = 0, settings.most_waiting
        thread = ThreadPoolExecutor(1, "compute")

        async def together(batch: list[Samples]) -> list[Computed | Exception]:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(thread, compute_all, compute, batch)

        self._batched: Any = serve.batch(
            max_batch_size=settings.batch,
            batch_wait_timeout_s=settings.wait or BATCH_WAIT,
            batch_size_fn=lambda requests: sum(map(len, requests)),
        )(together)

    async def __call__(self, samples: Samples) -> Computed:
        if self.waiting and self.waiting + len(samples) > self.most_waiting:
            raise BusyError(
                f"{self.waiting} samples wait, of {self.most_waiting} at most", retry_after=1
            )
        self.waiting += len(samples)
        try:
            computed: Computed | Exception = await self._batched(samples)
        finally:
            self.waiting -= len(samples)
        if isinstance(computed, Exception):
            raise computed
        return computed


def node_app(folder: Path, settings: ServeSettings, most_replicas: int) -> FastAPI:
    """Return the application of one replica, with its share of the transfer limit."""
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    facts, part = read_part(folder)
    if settings.threshold is not None:
        facts = replace(facts, threshold=settings.threshold)
    forwarder, client = forwarder_of(facts, settings)
    limit = limit_of(facts, settings)
    if limit.rate is not None:
        limit.rate /= most_replicas
    batcher = RayBatcher(computing(facts, part), settings)
    node = Node(facts, batcher, forwarder, limit, settings.batch, lambda: batcher.waiting)
    return make_app(node, settings.token, client.aclose)


def deployment(folder: Path, settings: ServeSettings, replicas: Replicas) -> serve.Application:
    """Return the node in the form that `ray.serve.run` takes."""
    least, most = replicas
    scaling: dict[str, Any] = {"num_replicas": least}
    if most > least:
        scaling = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=least, max_replicas=most, target_ongoing_requests=8
            )
        }

    def build() -> FastAPI:  # Ray recognises a builder by its being a plain function
        return node_app(folder, settings, most)

    replica: Any = serve.ingress(build)()
    made: Any = serve.deployment(
        replica,
        name=read_facts(folder).name,
        max_ongoing_requests=MOST_REQUESTS,
        max_queued_requests=settings.most_waiting,
        **scaling,
    )
    application: serve.Application = made.bind()
    return application


def serve_on_ray(folder: Path, settings: ServeSettings, replicas: Replicas) -> None:
    """Serve a node on Ray until SIGTERM or SIGINT; here, or in the cluster of RAY_ADDRESS.

    A cluster has one Serve, and Serve one proxy, which has to be the node's own.
    """
    check_certificate(settings)
    name, there = read_facts(folder).name, os.environ.get("RAY_ADDRESS")
    if not ray.is_initialized():
        local: dict[str, Any] = {} if there else {"include_dashboard": False}
        local |= {"log_to_driver": False, "logging_level": logging.WARNING}
        ray.init(there or "local", runtime_env=WORKERS, **local)
    found = serve.status()
    if found.proxies or found.applications:
        served = ", ".join(found.applications) or "nothing yet"
        raise ServeError(f"the cluster at {there} already serves {served}: expected one without")
    serve.start(
        http_options=HTTPOptions(
            host=settings.host,
            port=settings.port,
            ssl_certfile=str(settings.certificate),
            ssl_keyfile=str(settings.key),
            keep_alive_timeout_s=15,
        )
    )
    stopped = threading.Event()
    # Ray has set its own handlers by now, and a node answers before `run` returns.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    serve.run(deployment(folder.resolve(), settings, replicas), name=name, route_prefix="/")
    stopped.wait()
    serve.delete(name)
    if not serve.status().applications:  # never end other applications
        serve.shutdown()  # type: ignore[no-untyped-call]
    ray.shutdown()
