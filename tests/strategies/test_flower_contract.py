"""Flower's own loop can drive every strategy, with the same weights as our streamed loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from data.spec import DatasetSpec
from models import extract
from protocol.arrays import unpack
from protocol.work import Work
from server_app.building import strategy_of
from server_app.config.composing import compose
from strategies.federation import (
    EvaluateConfig,
    Federation,
    FederationError,
    FleetConfig,
    ModelConfig,
)
from strategies.methods.heterofl import HeteroFL, HeteroFLSettings
from strategies.round import NestedStrategy
from tests.support.federations import SMALL
from tests.support.grids import Fault, InProcessGrid, no_fault
from tests.support.toy_training import EPOCH

SHORT = f"{SMALL} dataset.max_train=160 output=unused"


def made(overrides: str = "") -> NestedStrategy:
    return strategy_of(compose(f"{SHORT} {overrides}"))


class WaitingGrid(InProcessGrid):
    """A grid as Flower's own are: it sends all messages, then returns all replies."""

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        waiting = list(self.push_messages(list(messages)))
        replies: list[Message] = []
        while asked := [identity for identity in waiting if identity in self.waiting]:
            replies += self.pull_messages(asked)
        return iter(replies)


def run_by_flower(strategy: NestedStrategy, grid: InProcessGrid, rounds: int = 2) -> ArrayRecord:
    """Run a strategy by Flower's unmodified loop."""
    result = Strategy.start(strategy, grid, initial_arrays=strategy.arrays(), num_rounds=rounds)
    assert result.arrays is not None
    return result.arrays


def assert_same(arrays: ArrayRecord, strategy: NestedStrategy) -> None:
    state = arrays.to_torch_state_dict()
    assert list(state) == list(strategy.state)
    different = [k for k, v in state.items() if not torch.equal(v, strategy.state[k])]
    assert different == []


@pytest.mark.parametrize(
    "overrides",
    [
        "strategy=scalefl strategy.window=random",
        "strategy=heterofl model.norm=bn-static evaluate.every=1 evaluate.clients_every=1",
        "strategy=decoupled weighting=examples",
        "strategy=fedfa strategy.trials=2 strategy.batch_size=8 aggregation=median",
        "strategy=flexifed strategy.choose=largest strategy.rule=basic",
        "strategy=feddf strategy.distillation.steps=3 strategy.validation=0.5 dataset.server=0.3",
        "strategy=fedavg clients_per_round=2",
        "strategy=serving_rate strategy.weights=balanced fleet=cis_figure2 train.batch_size=8",
    ],
)
def test_flowers_own_loop_gives_the_same_weights(overrides: str) -> None:
    ours = made(overrides)
    streamed = ours.start(InProcessGrid(4)).arrays
    assert_same(streamed, ours)
    assert "validation" in ours.tally.asked
    for grid in (WaitingGrid(4, shuffle=3), InProcessGrid(4)):  # which streams in Flower's loop
        theirs = made(overrides)
        assert_same(run_by_flower(theirs, grid), ours)
        assert (theirs.round, theirs.untrained) == (ours.round, ours.untrained)


def test_a_strategy_that_is_made_by_hand_runs_in_ten_lines() -> None:
    federation = Federation(
        model=ModelConfig("resnet20"),
        dataset=DatasetSpec("digits", clients=4, max_train=120),
        fleet=FleetConfig(clients=4, budgets=(0.3, 1.0), shares=(0.5, 0.5)),
        train=replace(EPOCH, batch_size=64),
        evaluate=EvaluateConfig(every=1),
        clients_per_round=4,
        rounds=3,
    )
    strategy = HeteroFL(federation, HeteroFLSettings(widths=(0.5, 1.0)))
    first = {name: tensor.clone() for name, tensor in strategy.state.items()}
    result = strategy.start(grid=InProcessGrid(4), initial_arrays=strategy.arrays(), num_rounds=3)
    assert strategy.federation.model.options == {"norm": "bn-static", "scaler": "train"}
    assert list(result.train_metrics_clientapp) == [1, 2, 3]
    assert set(result.evaluate_metrics_clientapp[3]) == {"local", "global", "validation"}
    assert strategy.round == 3
    assert_same(result.arrays, strategy)
    assert not torch.equal(first["linear.weight"], strategy.state["linear.weight"])


def test_the_log_names_tests_that_fewer_rounds_than_the_configs_leave_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    made("rounds=3").start(InProcessGrid(4), num_rounds=1)
    (told,) = [text for text in caplog.messages if "num_rounds" in text]
    assert told == (
        "num_rounds is 1, but rounds is 3: tests that are due after round 3 alone are not made "
        "(clients, server, validation); compose the config with rounds=1"
    )
    caplog.clear()
    made("rounds=2 evaluate.every=1 evaluate.clients_every=1").start(InProcessGrid(4), num_rounds=1)
    made("rounds=1").start(InProcessGrid(4), num_rounds=1)
    assert not any("num_rounds" in text for text in caplog.messages)


def test_a_levels_network_is_made_of_a_results_arrays() -> None:
    strategy = made("strategy=scalefl rounds=1 train.lr=0.01")
    arrays = strategy.start(InProcessGrid(4)).arrays
    expected = strategy.network(2).eval()
    strategy.state = {name: torch.zeros_like(tensor) for name, tensor in strategy.state.items()}
    network, images = strategy.level_network(arrays, level=2), torch.rand(3, 1, 8, 8)
    with torch.no_grad():
        assert all(
            torch.equal(a, b) for a, b in zip(network(images), expected(images), strict=True)
        )
    with pytest.raises(ValueError, match="level is 5: expected 1 to 4"):
        strategy.level_network(arrays, level=5)
    with pytest.raises(FederationError, match="the arrays is of another model or plan"):
        strategy.level_network(ArrayRecord({"x": torch.zeros(1)}), level=1)


def test_the_arrays_that_are_given_are_trained(tmp_path: Path) -> None:
    strategy = made("strategy=fedavg rounds=1 train.lr=1e-9 train.weight_decay=0")
    given = {name: torch.full_like(t, 0.25) for name, t in strategy.state.items()}
    after = strategy.start(InProcessGrid(4), ArrayRecord(given)).arrays.to_torch_state_dict()
    assert all(torch.allclose(after[name], given[name], atol=1e-4) for name in given)


def test_arrays_of_another_model_are_refused() -> None:
    other = ArrayRecord({"conv1.weight": torch.zeros(1)})
    with pytest.raises(FederationError, match="the state is of another model or plan"):
        made().start(InProcessGrid(4), other)


def test_arrays_of_another_type_are_refused() -> None:
    strategy = made()
    double = ArrayRecord({name: tensor.double() for name, tensor in strategy.state.items()})
    with pytest.raises(FederationError, match="the state is of another model or plan"):
        strategy.start(InProcessGrid(4), double)


def test_fewer_rounds_are_the_first_of_the_schedule_in_both_loops() -> None:
    schedule = "strategy=fedavg rounds=8 train.schedule=cosine"
    ours, theirs = made(schedule), made(schedule)
    ours.start(InProcessGrid(4), num_rounds=2)
    assert_same(run_by_flower(theirs, WaitingGrid(4), rounds=2), ours)
    whole = made("strategy=fedavg rounds=2 train.schedule=cosine")
    whole.start(InProcessGrid(4))
    assert not torch.equal(whole.state["conv1.weight"], ours.state["conv1.weight"])


class Halved(Strategy):
    """A wrapper, as Flower's own are, that changes the arrays which a strategy returns."""

    def __init__(self, wrapped: NestedStrategy) -> None:
        self.wrapped = wrapped

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self.wrapped.configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord]:
        arrays, metrics = self.wrapped.aggregate_train(server_round, replies)
        return ArrayRecord({k: v / 2 for k, v in arrays.to_torch_state_dict().items()}), metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return self.wrapped.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        return self.wrapped.aggregate_evaluate(server_round, replies)

    def summary(self) -> None:
        self.wrapped.summary()


def test_a_wrapper_that_changes_the_arrays_is_what_clients_train_and_test() -> None:
    strategy, grid = made("strategy=fedavg evaluate.clients_every=1"), WaitingGrid(4)
    start = strategy.arrays()
    arrays = Strategy.start(Halved(strategy), grid, start, num_rounds=2).arrays
    assert_same(arrays, strategy)
    (submodel,) = map(strategy.submodels.at, strategy.levels)
    tested = [m for m in grid.sent if m.metadata.message_type == "evaluate"][-1]
    weights = unpack(tested.content.array_records["arrays"], submodel.form)
    part = extract(strategy.state, submodel.map)
    assert all(torch.equal(weights[name], part[name]) for name in part)


def test_empty_arrays_leave_the_start_to_the_strategy() -> None:
    """If levels follow from the clients, the global state is unknown before they come."""
    grid, again = WaitingGrid(4), InProcessGrid(4)
    for each in (grid, again):
        for context, budget in zip(each.contexts.values(), (0.3, 0.3, 1.0, 1.0), strict=True):
            context.node_config["budget"] = budget
    free = "strategy=scalefl strategy.ratios=null strategy.tolerance=0.2"
    theirs = made(free)
    arrays = Strategy.start(theirs, grid, initial_arrays=ArrayRecord(), num_rounds=2).arrays
    ours = made(free)
    ours.start(again)
    assert len(ours.levels) == 2
    assert_same(arrays, ours)


def test_what_the_caller_says_reaches_the_clients_and_its_own_test_is_called() -> None:
    grid, seen = InProcessGrid(4), dict[int, float]()

    def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord:
        seen[round] = float(arrays.to_torch_state_dict()["conv1.weight"].abs().sum())
        return MetricRecord({"sum": seen[round]})

    strategy = made("strategy=fedavg evaluate.clients_every=1")
    result = strategy.start(
        grid,
        num_rounds=1,
        train_config=ConfigRecord({"lambda": 3}),
        evaluate_config=ConfigRecord({"deep": True}),
        evaluate_fn=evaluate,
    )
    told = {m.metadata.message_type: Work.read(m.content).told for m in grid.sent}
    assert told == {"query": {}, "train": {"lambda": 3}, "evaluate": {"deep": True}}
    assert list(seen) == [0, 1]
    assert result.evaluate_metrics_serverapp[1]["sum"] == seen[1] != seen[0]


def silent(client: int, message: Message, reply: Message) -> Message | None:
    return None if client == 1 and message.metadata.message_type == "train" else reply


def large(client: int, message: Message, reply: Message) -> Message:
    if client == 1 and message.metadata.message_type == "train":
        reply.content["more"] = ConfigRecord({"text": "x" * 10**6})
    return reply


def elsewhere(client: int, message: Message, reply: Message) -> Message:
    """Client 1 answers in the name of a group that it was not asked in."""
    if client == 1 and message.metadata.message_type == "train":
        reply.metadata.__dict__["_group_id"] = "0"
    return reply


@pytest.mark.parametrize(
    ("fault", "failed", "refused"),
    [
        (silent, {"late": 1}, {}),
        (large, {}, {"too-large": 1}),
        (elsewhere, {"late": 1}, {}),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_faults_are_counted_in_flowers_loop_too(
    fault: Fault, failed: dict[str, int], refused: dict[str, int]
) -> None:
    strategy = made("strategy=fedavg")
    run_by_flower(strategy, WaitingGrid(4, fault), rounds=1)
    assert (strategy.tally.failed, strategy.tally.refused) == (failed, refused)
    assert strategy.tally.accepted == 3
    honest = made("strategy=fedavg")
    run_by_flower(honest, WaitingGrid(4, no_fault), rounds=1)
    assert not torch.equal(honest.state["conv1.weight"], strategy.state["conv1.weight"])
