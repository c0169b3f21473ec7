"""A method that trains the early exits, and a fleet's run of it, without processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch.nn.functional as F
from torch import Tensor

from client_app import objectives
from protocol.records import Work
from server_app import app as server
from server_app.config import compose
from strategies.base import NestedStrategy
from strategies.enrolment import Client
from strategies.registry import STRATEGIES
from strategies.submodels import Submodel
from tests.grids import InProcessGrid

NAME = "all-exits"


def all_exits(logits: list[Tensor], labels: Tensor) -> Tensor:
    """The cross-entropy of every exit."""
    total = F.cross_entropy(logits[0], labels)
    for answer in logits[1:]:
        total = total + F.cross_entropy(answer, labels)
    return total


class AllExits(NestedStrategy):
    trains_early_exits = True

    def work(self, client: Client, submodel: Submodel, round: int) -> Work:
        return replace(super().work(client, submodel, round), objective=NAME)


if NAME not in objectives.names():
    objectives.register(NAME)(all_exits)
STRATEGIES.setdefault(NAME, AllExits)


def trained_run(output: Path, overrides: str = "") -> Path:
    """A run directory of four clients, one in each level, on digits."""
    config = compose(
        f"strategy=decoupled strategy.name={NAME} model=resnet20 model.head=pool fleet=small "
        f"rounds=2 train.epochs=2 train.batch_size=32 evaluate.every=0 output={output} name=run "
        f"dataset.max_train=600 {overrides}"
    )
    server.run(InProcessGrid(config.fleet.clients), config)
    return output / str(config.name)
