"""Nodes to send requests to: a small run, split, with its nodes in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from inference.serving.app import make_app
from inference.serving.batching import Batcher
from inference.serving.forwarding import Forwarder, TransferLimit
from inference.serving.node import Node, computing
from inference.serving.node_part import NodePart, read_part
from inference.serving.parent import Address, Parent
from models.parts import Part
from server_app import app as server
from server_app.config.composing import compose
from tests.support.grids import InProcessGrid

TOKEN = "a-token-of-these-tests"
BEARER = {"Authorization": f"Bearer {TOKEN}"}

Parts = Mapping[str, tuple[NodePart, Part]]


def small_run(output: Path, overrides: str = "") -> Path:
    """Return a run directory of four clients, one in each level, after a round on few digits."""
    config = compose(
        "strategy=depthfl model=resnet20 fleet=small rounds=1 train.epochs=1 train.batch_size=16 "
        "train.augment=false evaluate.every=0 dataset.max_train=400 dataset.validation=0.2 "
        f"output={output} name=run {overrides}"
    )
    server.run(InProcessGrid(config.fleet.clients), config)
    return output / str(config.name)


def parts_in(folder: Path) -> Parts:
    return {path.name: read_part(path) for path in sorted(folder.iterdir()) if path.is_dir()}


def node_of(
    parts: Parts,
    name: str,
    above: Mapping[str, FastAPI | httpx.AsyncBaseTransport] | None = None,
    *,
    rate: float | None = None,
    clock: Callable[[], float] | None = None,
    half: bool = False,
    most: int = 64,
    patience: float = 30.0,
    batching: Mapping[str, Any] | None = None,
    **changed: Any,
) -> Node:
    """Return a node with its parents, each an application or a substitute for its network."""
    facts, part = parts[name]
    facts = replace(facts, **changed)
    clocked: dict[str, Any] = {} if clock is None else {"clock": clock}
    asked = [
        Parent(
            parent,
            Address(f"https://{parent}", TOKEN),
            httpx.AsyncClient(
                transport=httpx.ASGITransport(there) if isinstance(there, FastAPI) else there
            ),
            half,
            patience=patience,
            **clocked,
        )
        for parent, there in (above or {}).items()
    ]
    batcher = Batcher(computing(facts, part), most, **(batching or {}))
    limit = TransferLimit(rate, **clocked)
    forwarder = Forwarder(asked, facts.parents, most)
    return Node(facts, batcher, forwarder, limit, most, lambda: batcher.waiting)


def app_of(node: Node) -> FastAPI:
    return make_app(node, TOKEN)


def client_of(app: FastAPI) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="https://node")
