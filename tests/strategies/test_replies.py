"""A round's replies: accepted, refused, and counted.

Eight clients, two of each level from the smallest on; a few of them lie.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, Message

from protocol.records import size
from tests.support.federations import federate_in
from tests.support.grids import InProcessGrid

FAST = "rounds=1 dataset.test=0 dataset.max_test=10"
SECONDS = [3.0, 7.5, 9.0, 2.0, 1.0, 1.0, 1.0, 1.0]


class Liars(InProcessGrid):
    """Client 1 has one example; 4 claims none, 5 one too many, 6 raises, the loss of 7 is none."""

    def __init__(self) -> None:
        super().__init__(8, self.lie)
        self.run_dir = Path()
        self.examples: dict[int, int] = {}
        self.down: dict[int, int] = defaultdict(int)
        self.up: dict[int, int] = defaultdict(int)

    def lie(self, client: int, message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "query":
            record = reply.content.config_records["profile"]
            said = json.loads(str(record["json"]))
            self.examples[client] = 1 if client == 1 else said["examples"]
            record["json"] = json.dumps(said | {"examples": self.examples[client]})
        elif message.metadata.message_type == "train":
            self.down[client] += size(message.content)
            if client == 6:
                return Message(Error(2, "no memory"), reply_to=message)
            report = reply.content.metric_records["metrics"]
            claims = {1: 1, 4: 0, 5: self.examples[5] + 1}
            report["num-examples"] = claims.get(client, self.examples[client])
            report["loss"] = float("nan") if client == 7 else float(client + 1)
            report["seconds"] = SECONDS[client]
            self.up[client] += size(reply.content)
        return reply


Round = tuple[Liars, dict[str, Any]]
"""A grid, and the record's line of the one round that it was used for."""


@pytest.fixture(scope="module")
def liars(tmp_path_factory: pytest.TempPathFactory) -> Round:
    grid = Liars()
    folder = tmp_path_factory.mktemp("runs")
    _, (line,) = federate_in(folder)(f"{FAST} fleet.clients=8 clients_per_round=8", grid)
    (grid.run_dir,) = folder.iterdir()
    return grid, line


def test_a_claim_of_one_example_or_of_all_is_taken_and_of_none_or_one_more_refused(
    liars: Round,
) -> None:
    grid, line = liars
    clients = line["clients"]
    assert (clients["sampled"], clients["replied"]) == (8, 4)  # and half is enough
    assert clients["refused"] == {"examples": 2, "non-finite": 1}
    assert clients["failed"] == {"raised": 1}
    has = grid.examples[5]
    assert clients["problems"] == {
        "4": f"examples: 0 claimed, but client 4 has {grid.examples[4]}",
        "5": f"examples: {has + 1} claimed, but client 5 has {has}",
        "6": "raised no memory",
        "7": "non-finite: the loss is nan",
    }


def test_a_levels_seconds_are_those_of_its_slowest_client(liars: Round) -> None:
    slices = liars[1]["slices"]
    assert [slices[level]["seconds"] for level in "1234"] == [7.5, 9.0, 0.0, 0.0]


def test_those_taken_are_counted_under_their_level(liars: Round) -> None:
    slices = liars[1]["slices"]
    assert [slices[level]["replied"] for level in "1234"] == [2, 2, 0, 0]


def test_bytes_are_counted_under_their_level_refused_ones_too(liars: Round) -> None:
    grid, line = liars
    for level in range(4):
        clients, counted = (2 * level, 2 * level + 1), line["slices"][str(level + 1)]
        assert counted["down"] == sum(grid.down[client] for client in clients) > 0
        assert counted["up"] == sum(grid.up[client] for client in clients) > 0
    assert line["bytes"] == {"down": sum(grid.down.values()), "up": sum(grid.up.values())}


def test_the_loss_is_the_mean_of_those_taken(liars: Round) -> None:
    assert liars[1]["train"]["loss"] == (1 + 2 + 3 + 4) / 4


@pytest.mark.parametrize(("weighting", "mean"), [("uniform", 1.5), ("examples", 2.0)])
def test_clients_weigh_the_same_or_by_their_examples(
    weighting: str, mean: float, tmp_path: Path
) -> None:
    def constant(client: int, message: Message, reply: Message) -> Message:
        """Client i has i + 1 examples, and sends a slice of which all entries are i."""
        if message.metadata.message_type == "query":
            record = reply.content.config_records["profile"]
            said = json.loads(str(record["json"])) | {"examples": client + 1}
            record["json"] = json.dumps(said)
        else:
            arrays = reply.content.array_records["arrays"]
            same = {
                kind: Array(np.full_like(array.numpy(), client)) for kind, array in arrays.items()
            }
            reply.content["arrays"] = ArrayRecord(same)
            reply.content.metric_records["metrics"]["num-examples"] = client + 1
        return reply

    overrides = f"{FAST} weighting={weighting} dataset.max_train=80"
    strategy, _ = federate_in(tmp_path)(overrides, InProcessGrid(4, constant))
    # All four hold the first channel: (0 + 1 + 2 + 3) / 4, or (0*1 + 1*2 + 2*3 + 3*4) / 10.
    assert strategy.state["conv1.weight"][0].unique().tolist() == [mean]
    assert strategy.state["conv1.weight"][-1].unique().tolist() == [3]  # the largest alone


def test_progress_counts_every_reply_whatever_it_is(liars: Round) -> None:
    progress = liars[0].run_dir / "progress.jsonl"
    lines = [json.loads(line) for line in progress.read_text().splitlines()]
    replies = [(line["done"], line["of"]) for line in lines if line["event"] == "reply"]
    assert replies == [(number, 8) for number in range(1, 9)]
