"""One deployed device with the real ClientApp, and the requests of a server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.common.config import parse_config_args

from client_app.app import app
from protocol.reports import Profile
from protocol.work import Work
from server_app.config.composing import compose
from tests.support.grids import InProcessGrid

NODE = 7


def node_config(text: str) -> dict[str, Any]:
    """Return a node config as `flower-supernode --node-config` reads it."""
    return parse_config_args([text])


def question(overrides: str = "", **changes: Any) -> Work:
    """Return a run's first question to a device; `changes` are of the data set."""
    asked = compose(f"fleet=small {overrides}").query()
    return replace(asked, dataset=replace(asked.dataset, **changes))


def ask(work: Work, config: str, kind: str = "query") -> Message:
    """Return a node's answer, or raise the error that its server is told."""
    InProcessGrid(1)  # without a grid there are no messages
    message = Message(RecordDict({"work": work.record()}), NODE, kind)
    return app(message, Context(1, NODE, node_config(config), RecordDict(), {}))


def profile(work: Work, config: str) -> Profile:
    """Return a node's profile."""
    return Profile.read(ask(work, config).content)
