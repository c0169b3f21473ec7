"""Faults of clients that send invalid or harmful content: the real apps, in one process.

Client 0 of eight is hostile, and answers first. The others must train as if it were absent.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Error, Message
from numpy.typing import NDArray

from nestfl.local_engine import LocalGrid
from server_app import app as server
from server_app.config.composing import compose
from trials.faults.case import Case, Outcome, fault, survived
from trials.faults.runs import assert_same_end, rounds_of

HOSTILE, CLIENTS = 0, 8
SMALL = (
    f"fleet.clients={CLIENTS} clients_per_round={CLIENTS} "
    "strategy=heterofl model=resnet20 model.norm=bn rounds=1 "
    "train.epochs=1 train.batch_size=64 dataset.max_train=80 dataset.max_test=60 "
    "evaluate.every=0 evaluate.clients_every=0 dataset.test=0 train.device=cpu"
)

Trick = Callable[[int, Message, Message], Message]
"""Returns the message to send, from a client's number, a message and the honest reply."""
Reply = Callable[[Message, Message], Message]
"""Returns the message to send, from a message and an honest client's reply."""


def trick(replies: Reply, *kinds: str) -> Trick:
    """Return a trick: the hostile client replies in its own way to messages of these kinds."""

    def answer(client: int, message: Message, reply: Message) -> Message:
        if client == HOSTILE and message.metadata.message_type in kinds:
            return replies(message, reply)
        return reply

    return answer


class TrickedGrid(LocalGrid):
    """The local engine's Grid with clients that answer by a trick."""

    def __init__(self, nodes: int, trick: Trick) -> None:
        super().__init__(nodes)
        self.trick = trick

    def answer(self, message: Message) -> Message | None:
        reply = super().answer(message)
        client = list(self.contexts).index(message.metadata.dst_node_id)
        return self.trick(client, message, reply) if reply is not None else None


def federate(folder: Path, name: str, tricks: Trick, overrides: str = "") -> Path:
    """Run a federation and return its record; its output is in `NAME.log`."""
    with (folder / f"{name}.log").open("w") as output, redirect_stdout(output):
        logging.getLogger("flwr").handlers[:] = [logging.StreamHandler(output)]
        config = compose(f"{SMALL} output={folder} name={name} {overrides}")
        server.run(TrickedGrid(config.fleet.clients, tricks), config)
    return folder / name


def others_are_not_disturbed(
    case: Case, tricks: Trick, overrides: str = "", kind: str = "train"
) -> Outcome:
    """Assert that the run ends with the weights of one whose client 0 never answers this kind."""
    tricked = federate(case.folder, "tricked", tricks, overrides)
    case.see((case.folder / "tricked.log").read_text(), f"left out|refused|of {CLIENTS} ")
    silent = f"without-{kind}-{overrides.replace('=', '-')}"
    if not (case.shared / silent).exists():
        gone = trick(lambda message, reply: Message(Error(5, "gone"), reply_to=message), kind)
        federate(case.shared, silent, gone, overrides)
    for line in rounds_of(tricked):
        replied = line["clients"]["replied"]
        assert replied == CLIENTS - 1, f"{replied} of {CLIENTS - 1} honest clients were counted"
    assert_same_end(tricked, case.shared / silent)
    return survived("the hostile client's reply")


# --- replies --------------------------------------------------------------------------------------


def with_values(change: Callable[[NDArray[Any]], NDArray[Any]]) -> Trick:
    def replies(message: Message, reply: Message) -> Message:
        values = reply.content.array_records["arrays"]["float32"].numpy()
        reply.content["arrays"] = ArrayRecord({"float32": Array(change(values))})
        return reply

    return trick(replies, "train")


def peaked(value: float) -> Callable[[NDArray[Any]], NDArray[Any]]:
    def change(values: NDArray[Any]) -> NDArray[Any]:
        values[7] = value
        return values

    return change


@fault()
def nan(case: Case) -> Outcome:
    """A client sends a NaN."""
    return others_are_not_disturbed(case, with_values(peaked(float("nan"))))


@fault()
def peak(case: Case) -> Outcome:
    """A client sends one value of 4194303.5; the others answer after it."""
    return others_are_not_disturbed(case, with_values(peaked(4194303.5)))


@fault()
def wrong_shapes(case: Case) -> Outcome:
    """A client sends one value too few."""
    return others_are_not_disturbed(case, with_values(lambda values: values[:-1]))


@fault()
def wrong_names(case: Case) -> Outcome:
    """A client sends its values under another name."""

    def replies(message: Message, reply: Message) -> Message:
        arrays = reply.content.array_records["arrays"]
        reply.content["arrays"] = ArrayRecord({"weights": arrays["float32"]})
        return reply

    return others_are_not_disturbed(case, trick(replies, "train"))


@fault()
def no_arrays(case: Case) -> Outcome:
    """A client sends bytes that are no array."""

    def replies(message: Message, reply: Message) -> Message:
        garbage = Array("float32", (3,), "numpy.ndarray", b"\x93NUMPY" + bytes(range(200)))
        reply.content["arrays"] = ArrayRecord({"float32": garbage})
        return reply

    return others_are_not_disturbed(case, trick(replies, "train"))


@fault()
def extra_record(case: Case) -> Outcome:
    """A client sends a record of 300 MB besides what it was asked for."""

    def replies(message: Message, reply: Message) -> Message:
        reply.content["extra"] = ArrayRecord({"x": Array(np.zeros(300 * 2**20, np.uint8))})
        return reply

    return others_are_not_disturbed(case, trick(replies, "train"))


@fault()
def terminal_escapes(case: Case) -> Outcome:
    """Clients' error texts hold terminal escapes."""
    text = "ValueError: \x1b]0;owned\x07\x1b[2J\x1b[?25lboom\x9b31m\x08!"

    def answer(client: int, message: Message, reply: Message) -> Message:
        raises = (client, message.metadata.message_type) in {(0, "query"), (1, "train")}
        return Message(Error(2, text), reply_to=message) if raises else reply

    federate(case.folder, "tricked", answer)
    case.see((case.folder / "tricked.log").read_text(), "boom")
    for file in case.folder.rglob("*.*l*"):
        odd = {c for c in file.read_bytes().decode() if not c.isprintable() and c != "\n"}
        assert not odd, f"{file.name} holds {sorted(odd)}"
    return survived("the two clients' replies")


# --- a client's profile ---------------------------------------------------------------------------


def saying(change: Callable[[str], str]) -> Trick:
    def replies(message: Message, reply: Message) -> Message:
        record = reply.content.config_records["profile"]
        record["json"] = change(str(record["json"]))
        return reply

    return trick(replies, "query")


def profile_is_left_out(case: Case, change: Callable[[str], str], overrides: str = "") -> Outcome:
    return others_are_not_disturbed(case, saying(change), overrides, kind="query")


def with_examples(number: str) -> Callable[[str], str]:
    """Return a function that changes a profile's examples in its text, beyond `json`'s limits."""

    def change(profile: str) -> str:
        known = json.dumps(json.loads(profile)["examples"])
        return profile.replace(f'"examples": {known}', f'"examples": {number}')

    return change


@fault()
def nested_brackets(case: Case) -> Outcome:
    """A client's profile is 200,000 nested brackets."""
    return profile_is_left_out(case, lambda profile: "[" * 200_000 + "]" * 200_000)


@fault()
def examples_10_400(case: Case) -> Outcome:
    """A client says that it has 10**400 examples."""
    return profile_is_left_out(case, with_examples("1" + "0" * 400), "weighting=examples")


@fault()
def number_of_5000_digits(case: Case) -> Outcome:
    """A client says that it has a number of examples that has 5,000 digits."""
    return profile_is_left_out(case, with_examples("9" * 5000), "weighting=examples")


@fault()
def examples_10_18(case: Case) -> Outcome:
    """A client says that it has 10**18 examples, and that it trained on them."""

    def replies(message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "query":
            record = reply.content.config_records["profile"]
            record["json"] = with_examples(str(10**18))(str(record["json"]))
        else:
            reply.content.metric_records["metrics"]["num-examples"] = 10**18
        return reply

    tricks = trick(replies, "query", "train")
    return others_are_not_disturbed(case, tricks, "weighting=examples", kind="query")
