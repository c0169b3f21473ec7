"""Clients of very different size, and clients that claim or send what nobody can have."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from flwr.app import Array, ArrayRecord, Message

from protocol.work import Work
from server_app.record.summary import summarise
from tests.support.federations import Federate, federate_in
from tests.support.grids import Fault, InProcessGrid

HUGE = 50_000_000


@pytest.fixture
def federate(tmp_path: Path, one_thread: None) -> Federate:
    return federate_in(tmp_path)


def claiming(examples: int, liar: int = 3, part: str = "examples") -> Fault:
    """One client says, in all that it sends, that it has so many examples."""

    def fault(client: int, message: Message, reply: Message) -> Message:
        if client != liar:
            return reply
        if message.metadata.message_type == "query":
            record = reply.content.config_records["profile"]
            record["json"] = json.dumps(json.loads(str(record["json"])) | {part: examples})
        elif part == "examples" and "metrics" in reply.content.metric_records:
            reply.content.metric_records["metrics"]["num-examples"] = examples
        return reply

    return fault


def with_a_peak(value: float, liar: int) -> Fault:
    """One client sends its slice with one value changed."""

    def fault(client: int, message: Message, reply: Message) -> Message:
        if client == liar and message.metadata.message_type == "train":
            flat = torch.from_numpy(reply.content.array_records["arrays"]["float32"].numpy())
            flat[7] = value
            reply.content["arrays"] = ArrayRecord({"float32": Array(flat.numpy())})
        return reply

    return fault


def test_clients_without_a_test_part_are_not_asked_and_scores_say_of_how_many_they_are(
    federate: Federate,
) -> None:
    """Two clients of 3 examples have no test part, one of 100 has 10, one of 140 has 14."""
    grid = InProcessGrid(4)
    shares = "dataset.partition=shares dataset.shares=[3,3,100,140] dataset.max_train=246"
    overrides = f"rounds=1 name=mine evaluate.personal_every=0 checkpoint.best=false {shares}"
    strategy, lines = federate(overrides, grid)
    sizes = [strategy.clients[number].profile.test for number in range(4)]
    assert sizes == [0, 0, 10, 14]
    evaluated = [m for m in grid.sent if m.metadata.message_type == "evaluate"]
    assert {m.metadata.dst_node_id for m in evaluated} == {
        strategy.clients[number].node for number in (2, 3)
    }
    assert strategy.tally.asked["local"].without == strategy.tally.asked["global"].without == 2
    assert {number for number, _ in strategy.tally.personal} == {2, 3}
    trained = [Work.read(m.content) for m in grid.sent if m.metadata.message_type == "train"]
    assert sorted(work.personal for work in trained) == [False, False, True, True]
    of_two = {"clients": 2, "of": 4}
    summary = summarise(lines)  # type: ignore[arg-type]
    assert summary["tested"] == dict.fromkeys(("global", "local", "personal"), of_two)


def test_a_client_of_one_example_is_not_asked_for_statistics(federate: Federate) -> None:
    shares = "dataset.partition=shares dataset.shares=[1,60,60,60] dataset.max_train=181"
    _, lines = federate(f"rounds=1 model.norm=bn-static {shares}")
    asked = lines[-1]["asked"]["statistics"]
    assert (asked["asked"], asked["answered"], asked["failed"]) == (3, 3, {})


def test_a_test_part_that_is_larger_than_can_be_leaves_a_client_out(federate: Federate) -> None:
    strategy, _ = federate("rounds=1", InProcessGrid(4, claiming(HUGE, part="test")))
    assert not strategy.roster.left_out
    grid = InProcessGrid(4, claiming(HUGE, part="test"))
    strategy, _ = federate("rounds=1 max_examples=1000", grid)
    assert "test (see max_examples) is 50000000" in "".join(strategy.roster.left_out.values())


def test_levels_of_small_clients_have_statistics_beside_a_huge_client(federate: Federate) -> None:
    grid = InProcessGrid(4, claiming(HUGE))
    strategy, lines = federate("rounds=1 model.norm=bn-static", grid)
    for level in (1, 2, 3, 4):
        mean = strategy.state[f"bn1.running_mean@level{level}"]
        variance = strategy.state[f"bn1.running_var@level{level}"]
        assert mean.any(), level
        assert (variance != 1).all(), level
    assert lines[-1]["asked"]["statistics"]["refused"] == {}


def test_statistics_that_are_refused_are_counted_by_reason(federate: Federate) -> None:
    def fault(client: int, message: Message, reply: Message) -> Message:
        if client == 2 and message.metadata.message_type == "query.statistics":
            reply.content.metric_records["metrics"]["num-examples"] = 10**6
        return reply

    _, lines = federate("rounds=1 model.norm=bn-static", InProcessGrid(4, fault))
    asked = lines[-1]["asked"]["statistics"]
    assert (asked["answered"], asked["refused"]) == (4, {"examples": 1})


def test_a_run_weighted_by_examples_bears_a_huge_client(federate: Federate) -> None:
    grid = InProcessGrid(4, claiming(HUGE))
    _, lines = federate("weighting=examples", grid)
    assert [line["clients"]["replied"] for line in lines] == [4, 4]


@pytest.mark.parametrize("order", [None, 1, 2])
def test_one_large_value_shuts_nobody_out_whatever_the_order(
    order: int | None, federate: Federate
) -> None:
    grid = InProcessGrid(4, with_a_peak(4194303.5, liar=0), shuffle=order)
    strategy, lines = federate("rounds=1", grid)
    assert lines[0]["clients"]["refused"] == {"too-large": 1}  # changed by more than a million
    assert lines[0]["clients"]["replied"] == 3
    assert max(tensor.abs().max() for tensor in strategy.state.values()) < 100


def test_how_large_an_update_may_be_is_a_setting(federate: Federate) -> None:
    raised = "rounds=1 max_update.value=1e9 max_update.norm=1e9"
    _, lines = federate(raised, InProcessGrid(4, with_a_peak(4194303.5, liar=0)))
    assert lines[0]["clients"]["replied"] == 4


def test_a_client_with_more_examples_than_can_be_is_left_out(federate: Federate) -> None:
    strategy, _ = federate("rounds=1", InProcessGrid(4, claiming(10**15)))
    assert sorted(strategy.clients) == [0, 1, 2]
    (reason,) = strategy.roster.left_out.values()
    assert reason == (
        "examples (see max_examples) is 1000000000000000: expected a whole number, 0 to 100000000"
    )
