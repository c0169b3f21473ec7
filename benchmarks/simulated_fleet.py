"""Runs a Ray simulation on this machine, with a server of the benchmark's own."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from protocol.reports import Profile, Trained
from server_app.building import strategy_of
from server_app.config.composing import compose
from strategies.round import NestedStrategy

EXAMPLES = 100
"""Number of training examples that an echoing client reports."""


def simulate(clients: int, main: Callable[[Grid], None], client_app: ClientApp) -> None:
    """Run the server's `main` against this many clients, two at a time."""
    logging.getLogger("flwr").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    server_app = ServerApp()
    server_app.main()(lambda grid, context: main(grid))
    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=clients,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": 2, "log_to_driver": False, "logging_level": "ERROR"},
        },
    )


def nested_strategy(overrides: str) -> NestedStrategy:
    """Return the strategy of a run with these overrides; it evaluates nothing."""
    return strategy_of(compose(overrides))


echo = ClientApp()


@echo.query()
def introduce(message: Message, context: Context) -> Message:
    partition = int(context.node_config["partition-id"])
    parts = int(context.node_config["num-partitions"])
    profile = Profile(partition, parts, EXAMPLES, budget=None, device="cpu")
    return Message(RecordDict({"profile": profile.record()}), reply_to=message)


@echo.train()
def send_back(message: Message, context: Context) -> Message:
    trained = Trained(EXAMPLES, loss=0.0, seconds=0.0)
    arrays = message.content.array_records["arrays"]
    content = RecordDict({"arrays": arrays, "metrics": trained.record()})
    return Message(content, reply_to=message)
