"""Hostile clients among honest ones: the run continues, and names clients and reasons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

from strategies.round import NestedStrategy
from tests.support.federations import Federate, federate_in
from tests.support.grids import InProcessGrid

Hostile = Callable[[Message], Message]
"""Of an honest reply: what is sent in its place."""


@pytest.fixture
def federate(tmp_path: Path) -> Federate:
    return federate_in(tmp_path)


def attacked(
    federate: Federate, kind: str, attacks: Sequence[Hostile], overrides: str = ""
) -> tuple[dict[str, Any], dict[int, Hostile], NestedStrategy]:
    """A round with a client for each attack on one kind of message, and eight honest ones.

    Its metrics, the attack of each hostile client, and the strategy.
    """
    count = len(attacks) + 8
    honest = {round(place * (count - 1) / 7) for place in range(8)}
    hostile = dict(zip(sorted(set(range(count)) - honest), attacks, strict=True))

    def fault(client: int, message: Message, reply: Message) -> Message:
        if client in hostile and message.metadata.message_type == kind:
            return hostile[client](reply)
        return reply

    strategy, lines = federate(
        f"rounds=1 fleet.clients={count} clients_per_round={count} min_replies=0.05 "
        f"dataset.max_train=1000 {overrides}",
        InProcessGrid(count, fault),
    )
    return lines[0], hostile, strategy


def saying(text: str) -> Hostile:
    """A profile of this text."""

    def hostile(reply: Message) -> Message:
        reply.content["profile"] = ConfigRecord({"json": text})
        return reply

    return hostile


def claiming(field: str, value: str) -> Hostile:
    """A profile of which one field is this JSON."""

    def hostile(reply: Message) -> Message:
        said = str(reply.content.config_records["profile"]["json"])
        before, _, after = said.partition(f'"{field}": ')
        changed = f'{before}"{field}": {value}, ' + after.partition(", ")[2]
        reply.content["profile"] = ConfigRecord({"json": changed})
        return reply

    return hostile


def reporting(**values: Any) -> Hostile:
    """A report of which some values are these; None is left out."""

    def hostile(reply: Message) -> Message:
        metrics = reply.content.metric_records["metrics"]
        for name, value in values.items():
            name = name.replace("_", "-")
            if value is None:
                del metrics[name]
            else:
                metrics[name] = value
        return reply

    return hostile


def with_record(name: str, record: ArrayRecord | ConfigRecord | MetricRecord) -> Hostile:
    """One record more than was asked for, or another in place of one."""

    def hostile(reply: Message) -> Message:
        reply.content[name] = record
        return reply

    return hostile


def sending(data: bytes, *, append: bool = False) -> Hostile:
    """Arrays of these bytes, or with these bytes at their end."""

    def hostile(reply: Message) -> Message:
        sent = reply.content.array_records["arrays"]["float32"]
        own = sent.data + data if append else data
        array = Array(sent.dtype, sent.shape, sent.stype, own)
        reply.content["arrays"] = ArrayRecord({"float32": array})
        return reply

    return hostile


def boasting_header(shape: str) -> Hostile:
    """As many bytes as the slice has, below a header that names another shape."""

    def hostile(reply: Message) -> Message:
        data = reply.content.array_records["arrays"]["float32"].data
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
        return sending(data[:10] + header.encode() + data[128:])(reply)

    return hostile


def empty(reply: Message) -> Message:
    reply.content = RecordDict()
    return reply


def without_content(reply: Message) -> Message:
    reply.__dict__["_content"] = None
    return reply


def shouting(reply: Message) -> Message:
    return Message(Error(2, "\x1b[31m" + "boom " * 10**6), reply_to=_question(reply))


def of_unknown_error(reply: Message) -> Message:
    return Message(Error(10**6, None), reply_to=_question(reply))


def _question(reply: Message) -> Message:
    question = Message(RecordDict(), dst_node_id=7, message_type=reply.metadata.message_type)
    question.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
    return question


def of_another_message(reply: Message) -> Message:
    reply.metadata.__dict__["_reply_to_message_id"] = "no such message"
    return reply


def unreadable(reply: Message) -> Message:
    """Stands for what Flower cannot put together from the objects that a node has sent."""
    raise ValueError("Unexpected set of `children`. " + "x" * 10**6)


HUGE = ConfigRecord({"extra": b"0" * 10**7})
EVERYWHERE: list[Hostile] = [
    empty,
    without_content,
    shouting,
    of_unknown_error,
    unreadable,
    with_record("extra", MetricRecord({"x": 1.0})),
    with_record("extra", HUGE),
    with_record("extra", MetricRecord({"x": [0.0] * 10**6})),
    with_record("extra" * 10**5, MetricRecord({"x": 1.0})),
]
PROFILES: list[Hostile] = [
    *EVERYWHERE,
    saying("[" * 200_000),
    saying("[" * 1_500),
    saying(""),
    saying("7"),
    saying("null"),
    claiming("examples", str(10**400)),
    claiming("examples", "9" * 5_000),
    claiming("examples", "9" * 1_900),
    claiming("examples", "1e400"),
    claiming("examples", "true"),
    claiming("partition", "1000"),
    claiming("partitions", str(10**15)),
    claiming("budget", "NaN"),
    claiming("budget", "Infinity"),
    claiming("budget", "1e-320"),
    claiming("budget", "true"),
    claiming("device", "[1]"),
    with_record("profile", MetricRecord({"json": 1})),
    with_record("profile", ConfigRecord({"json": b"{}"})),
    with_record("profile", ConfigRecord({"json": "{}", "more": "x"})),
]
REPORTS: list[Hostile] = [
    *EVERYWHERE,
    reporting(num_examples=10**400),
    reporting(num_examples=-1),
    reporting(num_examples=3.5),
    reporting(num_examples=float("nan")),
    reporting(num_examples=[1]),
    reporting(loss=None),
    reporting(more=1.0),
    with_record("metrics", ConfigRecord({"num-examples": "1"})),
]
SLICES: list[Hostile] = [
    *REPORTS,
    reporting(loss=10**400),
    reporting(seconds=-1.0),
    reporting(seconds=float("nan")),
    reporting(seconds=float("inf")),
    sending(b""),
    sending(np.random.default_rng(0).bytes(80_000)),
    sending(b"\x93NUMPY\x01\x00\xff\xff" + b"(" * 70_000),
    sending(b"more", append=True),
    boasting_header("(10**12,)"),
    boasting_header("(1000000000000,)"),
    boasting_header("(-1,)"),
    boasting_header("()"),
    with_record("arrays", ArrayRecord()),
    with_record("arrays", ConfigRecord()),
    with_record("arrays", ArrayRecord({"object": Array("object", (1,), "numpy.ndarray", b"")})),
]
RESULTS: list[Hostile] = [
    *REPORTS,
    reporting(accuracy=[float("nan")]),
    reporting(accuracy=[5.0]),
    reporting(accuracy=[-(10**400)]),
    reporting(accuracy=[0.5, 0.5]),
    reporting(accuracy=[]),
    reporting(accuracy=0.5),
    reporting(loss=[10**400]),
]


def test_hostile_introductions_are_left_out(federate: Federate) -> None:
    line, hostile, strategy = attacked(federate, "query", PROFILES, "dataset.test=0")
    assert len(strategy.clients) == 8
    assert not hostile.keys() & strategy.clients.keys()
    assert line["clients"]["replied"] == 8
    assert len(line["left_out"]) == len(hostile)
    assert all(5 < len(why) < 600 for why in line["left_out"].values())


def test_hostile_replies_to_training_are_refused(federate: Federate) -> None:
    line, hostile, _ = attacked(federate, "train", SLICES, "dataset.test=0")
    clients = line["clients"]
    assert clients["replied"] == 8
    assert sum(clients["refused"].values()) + sum(clients["failed"].values()) == len(hostile)
    assert set(map(int, clients["problems"])) == hostile.keys()
    assert all(5 < len(why) < 600 for why in clients["problems"].values())


def test_hostile_test_results_are_refused(federate: Federate) -> None:
    line, hostile, _ = attacked(federate, "evaluate", RESULTS)
    for kind in ("local", "global"):
        asked = line["asked"][kind]
        assert sum(asked["refused"].values()) + sum(asked["failed"].values()) == len(hostile)
        assert set(map(int, asked["problems"])) == hostile.keys()
        assert 0 <= line[kind] <= 1


def test_hostile_statistics_are_refused(federate: Federate) -> None:
    line, hostile, strategy = attacked(federate, "query.statistics", SLICES, "model.norm=bn-static")
    asked = line["asked"]["statistics"]
    assert set(map(int, asked["problems"])) == hostile.keys()
    for level in (1, 2, 3, 4):
        gathered = strategy.state[f"bn1.running_mean@level{level}"]
        assert gathered.isfinite().all()
        assert 0 < gathered.abs().max() < 10


def test_a_reply_that_names_another_message_is_nobodys(federate: Federate) -> None:
    """The client that was asked counts as not having replied."""
    overrides = "dataset.test=0 deadline=15"
    line, _, _ = attacked(federate, "train", [of_another_message], overrides)
    assert (line["clients"]["replied"], line["clients"]["failed"]) == (8, {"late": 1})
