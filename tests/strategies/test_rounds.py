"""Rounds of a federation: the real strategies and the real ClientApp, without processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from flwr.app import Array, ArrayRecord, Error, Message
from torch import Tensor

from client_app.app import own_data, received
from protocol.arrays import pack, unpack
from protocol.reading import ProtocolError
from protocol.records import size
from protocol.work import Work
from server_app.building import strategy_of
from server_app.config.composing import compose
from server_app.record.metrics import round_line
from strategies.federation import FederationError
from strategies.round import NestedStrategy
from tests.support.federations import SMALL, Federate, federate_in, untimed
from tests.support.grids import Fault, InProcessGrid
from training.testing import with_own_statistics


@pytest.fixture
def federate(tmp_path: Path) -> Federate:
    return federate_in(tmp_path)


def same(first: NestedStrategy, second: NestedStrategy) -> bool:
    assert first.state.keys() == second.state.keys()
    return all(torch.equal(first.state[name], second.state[name]) for name in first.state)


def test_every_tensor_that_a_level_holds_changes_in_a_round(federate: Federate) -> None:
    config = compose(SMALL)
    before = strategy_of(config)
    after, _ = federate("rounds=1")
    unchanged = [n for n in after.state if torch.equal(after.state[n], before.state[n])]
    assert unchanged == []


def test_only_the_slice_crosses_the_wire(federate: Federate) -> None:
    grid = InProcessGrid(4)
    federate("rounds=1 strategy.widths=[0.125,0.25,0.5,1]", grid)
    trainings = [m for m in grid.sent if m.metadata.message_type == "train"]
    assert len(trainings) == 4
    for message in trainings:
        work = Work.read(message.content)
        own = 4 * sum(t.numel() for t in work.task.build(work.slice, "meta").state_dict().values())
        assert own <= size(message.content) <= 1.02 * own  # the smallest slice is of 19 kB


def test_the_order_of_replies_changes_no_bit(federate: Federate) -> None:
    in_order, _ = federate()
    shuffled, _ = federate("in_flight=4", InProcessGrid(4, shuffle=3))
    assert same(in_order, shuffled)


def test_the_same_seed_gives_the_same_weights_and_another_does_not(federate: Federate) -> None:
    first, again, other = federate()[0], federate()[0], federate("seed=1")[0]
    assert same(first, again)
    assert not same(first, other)


def test_a_resumed_run_ends_as_the_uninterrupted_one(federate: Federate, tmp_path: Path) -> None:
    whole, lines = federate("rounds=3 train.schedule=constant")

    class KilledError(BaseException):
        pass

    def killed_in_round_2(client: int, message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "train" and Work.read(message.content).round == 2:
            raise KilledError
        return reply

    with pytest.raises(KilledError):
        federate(
            "rounds=3 train.schedule=constant name=killed", InProcessGrid(4, killed_in_round_2)
        )
    resumed, resumed_lines = federate(f"resume={tmp_path / 'killed'}")
    assert same(whole, resumed)
    assert [line["round"] for line in resumed_lines] == [1, 2, 3]
    assert list(map(untimed, lines)) == list(map(untimed, resumed_lines))


def refused_by(fault: Fault, federate: Federate) -> tuple[NestedStrategy, dict[str, Any]]:
    strategy, lines = federate("rounds=1", InProcessGrid(4, fault))
    return strategy, lines[0]["clients"]


def of_client_2(change: Callable[[Message, Message], Message | None]) -> Fault:
    def fault(client: int, message: Message, reply: Message) -> Message | None:
        if client == 2 and message.metadata.message_type == "train":
            return change(message, reply)
        return reply

    return fault


def with_arrays(reply: Message, change: Callable[[Tensor], Tensor]) -> Message:
    flat = torch.from_numpy(reply.content.array_records["arrays"]["float32"].numpy())
    reply.content["arrays"] = ArrayRecord({"float32": Array(change(flat).numpy())})
    return reply


def poisoned(message: Message, reply: Message) -> Message:
    return with_arrays(reply, lambda flat: flat.index_fill(0, torch.tensor([7]), float("nan")))


def truncated(message: Message, reply: Message) -> Message:
    return with_arrays(reply, lambda flat: flat[:-1])


def boasting(message: Message, reply: Message) -> Message:
    reply.content.metric_records["metrics"]["num-examples"] = 10**6
    return reply


def without_loss(message: Message, reply: Message) -> Message:
    del reply.content.metric_records["metrics"]["loss"]
    return reply


def of_another_type(message: Message, reply: Message) -> Message:
    return with_arrays(reply, lambda flat: flat.half())


def of_twice_the_size(message: Message, reply: Message) -> Message:
    return with_arrays(reply, lambda flat: flat.double())


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (poisoned, "non-finite"),
        (truncated, "shape"),
        (of_another_type, "shape"),
        (of_twice_the_size, "too-large"),
        (boasting, "examples"),
        (without_loss, "report"),
    ],
)
def test_a_bad_reply_is_refused_with_its_reason_and_changes_nothing(
    fault: Callable[[Message, Message], Message], reason: str, federate: Federate
) -> None:
    strategy, clients = refused_by(of_client_2(fault), federate)
    assert clients["refused"] == {reason: 1}
    assert clients["replied"] == 3

    def absent(message: Message, reply: Message) -> Message:
        return Message(Error(5, "gone"), reply_to=message)

    without, _ = refused_by(of_client_2(absent), federate)
    assert same(strategy, without)


def test_a_client_that_raises_is_counted_and_the_round_goes_on(federate: Federate) -> None:
    def raising(message: Message, reply: Message) -> Message:
        return Message(Error(2, "Traceback\n\x1b[31mValueError: boom\x1b[0m\n"), reply_to=message)

    _, clients = refused_by(of_client_2(raising), federate)
    assert clients["failed"] == {"raised": 1}
    assert clients["replied"] == 3


def test_what_a_client_raises_commands_no_terminal(federate: Federate) -> None:
    error = (
        "Traceback\n\x1b]0;title\x07ValueError: \x1b[2Jb\u202eoom\x9b1A" + 10_000 * "!" + "\n\x07\n"
    )

    def raising(client: int, message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "train":
            return Message(Error(2, error), reply_to=message)
        return reply

    with pytest.raises(FederationError) as raised:
        federate("rounds=1", InProcessGrid(4, raising))
    assert "4 raised (ValueError: boom!!!" in str(raised.value)
    assert str(raised.value).isprintable()
    assert len(str(raised.value)) < 1000


def test_the_servers_log_has_a_line_for_every_round(
    federate: Federate, caplog: pytest.LogCaptureFixture
) -> None:
    def absent(message: Message, reply: Message) -> Message:
        return Message(Error(5, "gone"), reply_to=message)

    with caplog.at_level("INFO", logger="flwr"):
        _, lines = federate("rounds=2", InProcessGrid(4, of_client_2(absent)))
    logged = [text for text in caplog.messages if text.startswith("round ")]
    assert logged == [round_line(line, 2) for line in lines]
    assert logged[0].startswith("round 1/2, 3/4 replies, 1 failed, loss ")
    assert "accuracy of level 1: " in logged[1]


def test_a_late_client_is_left_behind_at_the_deadline(federate: Federate) -> None:
    def silent(message: Message, reply: Message) -> None:
        return None

    _, lines = federate("rounds=1 deadline=8", InProcessGrid(4, of_client_2(silent)))
    assert lines[0]["clients"]["failed"] == {"late": 1}


def test_a_round_in_which_all_fail_ends_the_run_with_the_reason(federate: Federate) -> None:
    def dead(client: int, message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "train":
            return Message(Error(0, "ActorDiedError: the actor died"), reply_to=message)
        return reply

    with pytest.raises(FederationError, match=r"round 1: 0 of 4 .* 4 crashed \(ActorDiedError"):
        federate("rounds=1", InProcessGrid(4, dead))


def test_a_fleet_larger_than_the_sample_is_sampled_over_all_rounds(federate: Federate) -> None:
    grid = InProcessGrid(8)
    federate("fleet.clients=8 clients_per_round=3 rounds=5", grid)
    trained = [m.metadata.dst_node_id for m in grid.sent if m.metadata.message_type == "train"]
    assert len(trained) == 15
    assert len(set(trained)) > 3


def test_no_more_messages_are_in_flight_than_was_asked_for(federate: Federate) -> None:
    grid = InProcessGrid(8)
    federate("fleet.clients=8 clients_per_round=8 rounds=1 in_flight=2", grid)
    assert grid.most_in_flight == 2


def test_a_level_without_clients_keeps_its_part(federate: Federate) -> None:
    strategy, lines = federate("fleet.shares=[1,1,1,0] rounds=1")
    config = compose(SMALL)
    first = strategy_of(config).state
    name = "layer3.2.conv2.weight"
    held = strategy.levels[2].slice.channels(64)
    assert torch.equal(strategy.state[name][held:], first[name][held:])
    assert not torch.equal(strategy.state[name][:held], first[name][:held])
    assert set(lines[0]["levels"]) == {"1", "2", "3", "4"}


@pytest.mark.parametrize("name", ["fedavg", "decoupled", "heterofl", "scalefl"])
def test_every_strategy_trains_and_reports_each_level_and_exit(
    name: str, federate: Federate
) -> None:
    strategy, lines = federate(f"strategy={name} "
                               "evaluate.clients_every=1")  # fmt: skip
    for level in strategy.levels:
        reported = lines[-1]["levels"][str(level.number)]
        assert set(reported["exits"]) == {str(unit) for unit in level.slice.exits or ()}
        assert reported["accuracy"] == list(reported["exits"].values())[-1]["accuracy"]
    accuracies = [level["accuracy"] for level in lines[-1]["levels"].values()]
    assert lines[-1]["worst"] == min(accuracies)
    assert lines[-1]["mean"] == pytest.approx(sum(accuracies) / len(accuracies))
    assert 0 <= lines[-1]["local"] <= 1
    assert 0 <= lines[-1]["global"] <= 1


def test_fedavg_gives_everyone_the_smallest_level(federate: Federate) -> None:
    grid = InProcessGrid(4)
    strategy, lines = federate("strategy=fedavg rounds=1", grid)
    slices = {Work.read(m.content).slice for m in grid.sent if m.metadata.message_type == "train"}
    assert slices == {strategy.levels[0].slice}
    assert set(lines[-1]["levels"]) == {"1"}


def test_decoupled_levels_share_nothing(federate: Federate) -> None:
    """Changing what level 4's client sends changes level 4 alone."""

    def shifted(client: int, message: Message, reply: Message) -> Message:
        if client == 3 and message.metadata.message_type == "train":
            return with_arrays(reply, lambda flat: flat + 1)
        return reply

    plain, _ = federate("strategy=decoupled rounds=1")
    changed, _ = federate("strategy=decoupled rounds=1", InProcessGrid(4, shifted))
    differing = {n.split("@")[1] for n in plain.state if "@" in n
                 and not torch.equal(plain.state[n], changed.state[n])}  # fmt: skip
    assert differing == {"level4"}


@pytest.mark.parametrize("name", ["heterofl", "scalefl", "decoupled"])
def test_static_norms_have_statistics_for_each_level_before_a_test(
    name: str, federate: Federate
) -> None:
    grid = InProcessGrid(4)
    strategy, _ = federate(f"strategy={name} model.norm=bn-static rounds=1", grid)
    assert sum(m.metadata.message_type == "query.statistics" for m in grid.sent) == 4
    for level in (1, 2, 3, 4):
        gathered = strategy.state[f"bn1.running_mean@level{level}"]
        assert gathered.shape == (strategy.levels[level - 1].slice.channels(16),)
        assert gathered.any()


@pytest.mark.parametrize(("statistics", "alone"), [("own", True), ("batch", False)])
def test_a_client_s_test_can_normalise_by_its_training_examples(
    statistics: str, alone: bool, federate: Federate
) -> None:
    """With training statistics an example is judged alone; with the batch's, others matter."""
    answers: list[list[float]] = []

    def remember(client: int, message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "evaluate":
            answers.append(list(reply.content.metric_records["metrics"]["loss"]))  # type: ignore[arg-type]
        return reply

    grid = InProcessGrid(4, remember)
    federate(f"rounds=1 evaluate.statistics={statistics}", grid)
    message = next(m for m in grid.sent if m.metadata.message_type == "evaluate")
    context = grid.contexts[message.metadata.dst_node_id]
    work, net = received(message, context)
    data = own_data(work, context)
    if statistics == "own":
        net = with_own_statistics(net, data.train, work.train)
    net.eval()
    losses = [F.cross_entropy(net(x)[-1], y).item() for x, y in data.test.batches(1)]
    expected = sum(losses) / len(losses)
    assert (answers[0][-1] == pytest.approx(expected, rel=1e-4)) is alone


def test_a_level_whose_clients_were_not_sampled_has_statistics_too(federate: Federate) -> None:
    strategy, _ = federate("model.norm=bn-static rounds=1 clients_per_round=1")
    for level in (1, 2, 3, 4):
        assert strategy.state[f"bn1.running_mean@level{level}"].any()


def test_a_norm_that_keeps_its_own_statistics_asks_nobody_for_them(federate: Federate) -> None:
    grid = InProcessGrid(4)
    _, lines = federate("model.norm=bn-running rounds=1", grid)
    assert set(lines[0]["asked"]) == {"local", "global", "validation"}


def test_statistics_are_gathered_before_clients_test_too(federate: Federate) -> None:
    """Round 1 is tested by clients alone; without statistics all would answer alike."""
    grid = InProcessGrid(4)
    federate("model.norm=bn-static rounds=2 evaluate.clients_every=1", grid)
    kinds = [message.metadata.message_type for message in grid.sent]
    assert kinds.index("query.statistics") < kinds.index("evaluate")


def test_bytes_that_are_no_arrays_are_refused_and_the_round_goes_on(federate: Federate) -> None:
    def garbage(client: int, message: Message, reply: Message) -> Message:
        if client == 2 and message.metadata.message_type == "train":
            arrays = ArrayRecord({"float32": Array("float32", (3,), "numpy.ndarray", b"")})
            reply.content["arrays"] = arrays
        return reply

    _, lines = federate("rounds=1", InProcessGrid(4, garbage))
    assert lines[0]["clients"]["refused"] == {"shape": 1}


def test_a_client_that_reports_nonsense_is_left_out_of_the_scores(federate: Federate) -> None:
    def boastful(client: int, message: Message, reply: Message) -> Message:
        if client == 2 and message.metadata.message_type == "evaluate":
            reply.content.metric_records["metrics"]["accuracy"] = [5.0]
        return reply

    _, lines = federate("rounds=1", InProcessGrid(4, boastful))
    assert 0 <= lines[0]["local"] <= 1
    assert "local" not in lines[0]["levels"]["3"]


def test_packing_and_unpacking_is_exact() -> None:
    state = {"a": torch.randn(3, 2), "n": torch.tensor(7), "b": torch.randn(4)}
    back = unpack(pack(state), state)
    assert all(torch.equal(back[name], state[name]) for name in state)
    with pytest.raises(ProtocolError, match="expected"):
        unpack(pack({"a": torch.randn(3)}), state)
