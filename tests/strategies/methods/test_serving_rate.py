"""Serving rate (CIS): its step is unbiased, its weights by hand, its rounds and their bytes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from flwr.app import Message
from torch import Tensor

from models import State, extract
from models.slicing import is_running_statistic
from protocol.reports import Profile
from protocol.work import Work
from server_app.building import strategy_of
from server_app.config.composing import ConfigError, compose
from strategies.aggregation.update import Update
from strategies.federation import FederationError
from strategies.levels.cost import cost
from strategies.levels.planning import Level
from strategies.levels.submodels import Cut
from strategies.methods.serving_rate.serving_rate import (
    ServingRate,
    balanced,
    normalised,
    projected,
)
from strategies.nodes.enrolment import Client
from tests.support.federations import Federate, federate_in, untimed
from tests.support.grids import InProcessGrid

TREE = "strategy=serving_rate fleet=cis_7 model=resnet20 report=false"
RUN = (
    f"{TREE} fleet.clients=7 clients_per_round=7 dataset.max_train=120 dataset.max_test=40 "
    "train.batch_size=8 train.schedule=constant model.norm=bn-running"
)
NUMPY_HEADER = 128
EXAMPLES = (10, 20, 30, 40, 60, 40, 100)


def method(overrides: str = "", examples: tuple[int, ...] = EXAMPLES) -> ServingRate:
    made = strategy_of(compose(f"{TREE} {overrides}"))
    assert isinstance(made, ServingRate)
    made.roster.clients = {
        n: Client(n, n, Profile(n, len(examples), count, None, "cpu"))
        for n, count in enumerate(examples)
    }
    return made


@pytest.fixture
def federate(tmp_path: Path) -> Federate:
    return federate_in(tmp_path)


# --- the step ----------------------------------------------------------------------------------


def trained(made: ServingRate, client: int, level: Level) -> State:
    """Return a node's update after training an exit: the received state, and its own change."""
    chance = torch.Generator().manual_seed(100 * client + level.number)
    sent = extract(made.state, made.submodels.at(level).map)
    return {
        name: t + torch.randn(t.shape, generator=chance) if t.dtype.is_floating_point else t
        for name, t in sent.items()
    }


def draw_as_told(made: ServingRate, draws: dict[int, Level]) -> None:
    def told(client: Client, round: int) -> Cut:
        return Cut(draws[client.number])

    made.drawn_cut = told  # type: ignore[method-assign]


def stepped(made: ServingRate, draws: dict[int, Level]) -> State:
    """Return the state after a round in which these nodes trained these levels."""
    draw_as_told(made, draws)
    aggregator = made.aggregator()
    for each in made.assign(1, [made.clients[number] for number in draws]):
        assert each.weight is not None
        state = trained(made, each.client.number, each.cut.level)
        aggregator.add(Update(state, made.submodels.of(each.cut).map, each.weight))
    return aggregator.result(made.state)


def full_participation(made: ServingRate) -> dict[str, Tensor]:
    """Return w + rate * sum over all pairs of Lambda_e |S_i| / |S_e| (w_ie - w), in double."""
    after = {name: t.double() for name, t in made.state.items()}
    for number, level in enumerate(made.levels):
        able = [c for c in made.clients.values() if level in made.levels_of(c)]
        total = sum(client.profile.examples for client in able)
        for client in able:
            weight = made.exit_weights[number] * client.profile.examples / total
            for name, tensor in trained(made, client.number, level).items():
                after[name] += made.settings.server_lr * weight * (tensor - made.state[name])
    return after


def all_draws(
    made: ServingRate, nodes: tuple[int, ...]
) -> Iterator[tuple[float, dict[int, Level]]]:
    """Yield every way in which these nodes may draw their exits, and how likely it is."""
    choices = [
        [(p, level) for level, p in made.levels_of(made.clients[node]).items()] for node in nodes
    ]
    for drawn in itertools.product(*choices):
        levels = dict(zip(nodes, (level for _, level in drawn), strict=True))
        yield math.prod(p for p, _ in drawn), levels


@pytest.mark.parametrize(
    ("overrides", "sampled"),
    [
        ("strategy.p=0", 7),
        ("strategy.p=0.2 strategy.server_lr=0.5", 7),
        ("strategy.probabilities=[[1],[0.3,0.7],[0,0.25,0.75]]", 7),
        ("strategy.p=0.3 fleet=cis_figure2 strategy.weights=given strategy.given=[1,2]", 3),
    ],
)
def test_the_expected_step_is_that_of_all_nodes_and_exits(overrides: str, sampled: int) -> None:
    """Over all draws, each counted as often as it comes up: exact but for float32."""
    nodes = 4 if "figure2" in overrides else 7
    made = method(overrides, EXAMPLES[:nodes])
    made.exit_weights = (0.5, 0.3, 0.2)[: len(made.levels)]
    made.roster.available = nodes
    expected = {name: torch.zeros_like(t, dtype=torch.float64) for name, t in made.state.items()}
    samples = list(itertools.combinations(range(nodes), sampled))
    for sample in samples:
        for probability, draws in all_draws(made, sample):
            for name, tensor in stepped(made, draws).items():
                expected[name] += tensor.double() * (probability / len(samples))
    wanted = full_participation(made)
    for name in wanted:
        if not is_running_statistic(name):
            torch.testing.assert_close(expected[name], wanted[name], rtol=0, atol=2e-5)


def test_dividing_by_p_is_what_makes_it_unbiased() -> None:
    """A node drawn with probability 0.2 counts five times as much as if it always trained that."""
    rare = method("strategy.p=0.2")
    rare.exit_weights = (0.5, 0.3, 0.2)
    cloud = rare.clients[6]
    draws = {6: rare.levels[0]}
    draw_as_told(rare, draws)
    (assigned,) = rare.assign(1, [cloud])
    # All seven may train exit 1: 300 examples, of which the cloud has 100.
    assert assigned.weight == pytest.approx(0.5 * 100 / 300 / 0.2)


def test_a_normalised_draw_shares_what_the_exit_counts() -> None:
    """Devices and the cloud, which was drawn for it, have 100 examples each of exit 1."""
    made = method("strategy.p=0.2 strategy.correction=normalised")
    made.exit_weights = (0.8, 0.15, 0.05)
    levels = made.levels
    draw_as_told(made, dict.fromkeys((0, 1, 2, 3, 6), levels[0]) | {4: levels[1], 5: levels[1]})
    weights = [each.weight for each in made.assign(1, list(made.clients.values()))]
    assert weights == pytest.approx([0.04, 0.08, 0.12, 0.16, 0.09, 0.06, 0.4])


def test_weights_of_pseudo_gradients_worked_out_by_hand() -> None:
    """Without p, an exit is trained by its own nodes: those of each exit have 100 examples."""
    made = method()
    made.exit_weights = (0.8, 0.15, 0.05)
    weights = [each.weight for each in made.assign(1, list(made.clients.values()))]
    assert weights == pytest.approx([0.08, 0.16, 0.24, 0.32, 0.15 * 0.6, 0.15 * 0.4, 0.05])


def test_sampled_nodes_count_for_those_that_are_not() -> None:
    made = method("clients_per_round=2")
    made.exit_weights = (0.8, 0.15, 0.05)
    made.roster.available = 7
    (first, _) = made.assign(1, [made.clients[0], made.clients[6]])
    assert first.weight == pytest.approx(0.08 * 7 / 2)


def test_a_head_moves_by_what_its_exit_counts_and_running_statistics_are_the_mean() -> None:
    made = method()
    made.exit_weights = (0.8, 0.15, 0.05)
    after = stepped(made, {6: made.levels[2]})
    sent = trained(made, 6, made.levels[2])
    moved = after["linear.weight"] - made.state["linear.weight"]
    torch.testing.assert_close(moved, 0.05 * (sent["linear.weight"] - made.state["linear.weight"]))
    torch.testing.assert_close(after["bn1.running_mean"], sent["bn1.running_mean"])
    early = [name for name in made.state if name.startswith("exits.")]
    assert early
    assert all(torch.equal(after[name], made.state[name]) for name in early)


def test_p_draws_exits_as_often_as_it_says() -> None:
    made = method("strategy.p=0.2")
    drawn = [made.drawn_cut(made.clients[6], turn).level.number for turn in range(1, 2001)]
    shares = [drawn.count(number) / len(drawn) for number in (1, 2, 3)]
    assert shares == pytest.approx([0.2, 0.2, 0.6], abs=0.03)
    assert {made.drawn_cut(made.clients[0], turn).level.number for turn in range(1, 50)} == {1}


# --- what exits count --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ("serving", (0.8, 0.15, 0.05)),
        ("equal", (1 / 3, 1 / 3, 1 / 3)),
        ("given strategy.given=[3,2,5]", (0.3, 0.2, 0.5)),
    ],
)
def test_exits_count_as_was_asked(weights: str, expected: tuple[float, ...]) -> None:
    made = method(f"strategy.weights={weights}")
    made.ask(InProcessGrid(0), list(made.clients.values()))
    assert made.exit_weights == pytest.approx(expected)


def test_flops_are_those_of_the_way_to_each_exit() -> None:
    made = method("strategy.weights=flops")
    made.ask(InProcessGrid(0), list(made.clients.values()))
    macs = [cost(made.federation.task, level.slice).macs for level in made.levels]
    assert made.exit_weights == pytest.approx([each / sum(macs) for each in macs])
    assert list(made.exit_weights) == sorted(made.exit_weights)


def test_balanced_is_the_mean_of_what_exits_serve_and_of_inverse_variances() -> None:
    """Inverses of 4, 2, 1 are 1/7, 2/7, 4/7."""
    found = balanced((80, 15, 5), (4, 2, 1))
    assert found == pytest.approx(((0.8 + 1 / 7) / 2, (0.15 + 2 / 7) / 2, (0.05 + 4 / 7) / 2))
    assert sum(found) == pytest.approx(1)


def test_clients_measure_the_variances_once_and_a_resumed_run_knows_them(
    federate: Federate,
) -> None:
    grid = InProcessGrid(7)
    made, lines = federate(f"{RUN} strategy.weights=balanced rounds=2 name=a", grid)
    assert isinstance(made, ServingRate)
    asked = [m for m in grid.sent if m.metadata.message_type == "query.method"]
    assert len(asked) == 7
    assert lines[0]["asked"]["variances"]["asked"] == 7
    assert "variances" not in lines[1].get("asked", {})
    serving = normalised((80, 15, 5))
    steady = [2 * both - own for both, own in zip(made.exit_weights, serving, strict=True)]
    assert sum(steady) == pytest.approx(1)
    assert all(share > 0 for share in steady)
    again = strategy_of(compose(f"{RUN} strategy.weights=balanced"))
    assert isinstance(again, ServingRate)
    again.load_state_dict(made.state_dict())
    assert again.exit_weights == made.exit_weights


def test_a_run_ends_where_the_one_client_of_an_exit_has_no_variance_for_it(
    federate: Federate,
) -> None:
    def lie(client: int, message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "query.method" and client == 6:
            reply.content.metric_records["metrics"]["variances"] = [1.0, -1.0, 1.0]
        return reply

    told = r"no client has measured how much the gradients of exit 3 vary.*\(client 0: "
    with pytest.raises(FederationError, match=told):
        federate(f"{RUN} strategy.weights=balanced rounds=1", InProcessGrid(7, lie))


# --- rounds ------------------------------------------------------------------------------------


def test_a_node_gets_and_sends_only_the_part_up_to_the_exit_that_it_trains(
    federate: Federate,
) -> None:
    """With p = 0.4 the cloud trains exit 1 in some rounds: its messages are as small as theirs."""
    sizes: dict[int, set[int]] = {}
    depths: set[int] = set()

    def watch(client: int, message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "train":
            (depth,) = Work.read(message.content).slice.exits or ()
            for each in (message, reply):
                arrays = each.content.array_records["arrays"].values()
                sizes.setdefault(depth, set()).add(sum(len(array.data) for array in arrays))
            depths.update({depth} if client == 6 else ())
        return reply

    made, _ = federate(f"{RUN} strategy.p=0.4 rounds=3", InProcessGrid(7, watch))
    assert len(depths) > 1
    for level in made.levels:
        net = made.federation.task.build(level.slice, device="meta").state_dict()
        values = sum(t.numel() * t.element_size() for t in net.values())
        assert sizes[level.split.depth] == {values + 2 * NUMPY_HEADER}  # of float32 and of int64


def test_all_heads_move_in_a_run_and_nodes_make_the_same_number_of_steps(
    federate: Federate,
) -> None:
    steps = set()

    def watch(client: int, message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "train":
            steps.add(Work.read(message.content).train.steps)
        return reply

    first = strategy_of(compose(f"{RUN} rounds=2")).state
    made, lines = federate(f"{RUN} rounds=2 evaluate.every=1", InProcessGrid(7, watch))
    moved = [name for name, t in made.state.items() if not torch.equal(t, first[name])]
    assert [name for name in made.state if name not in moved] == []
    # The cloud has a third of the 120 examples less a fifth to validate and test on: 32, of 8.
    assert steps == {4}
    assert set(lines[-1]["settings"]) >= {"80-15-5", "5-15-80"}
    assert lines[-1]["cis"] == lines[-1]["settings"]["80-15-5"]
    assert 0 <= lines[-1]["cis"] <= 1


def test_a_resumed_run_is_the_same_bit_for_bit(federate: Federate, tmp_path: Path) -> None:
    whole, lines = federate(f"{RUN} strategy.p=0.2 strategy.weights=balanced rounds=3 name=whole")
    federate(f"{RUN} strategy.p=0.2 strategy.weights=balanced rounds=1 name=part")
    resumed, again = federate(f"resume={tmp_path / 'part'} rounds=3")
    assert all(torch.equal(t, resumed.state[name]) for name, t in whole.state.items())
    assert untimed(again[-1]) == untimed(lines[-1])


def test_nodes_that_are_gone_still_count_after_a_resume() -> None:
    """Client 6 is offline when the run goes on: |S_1| has its examples, as without the pause."""
    before = method("strategy.p=0.2")
    before.exit_weights = (0.8, 0.15, 0.05)
    before.steps = 9
    first = [each.weight for each in before.assign(1, [before.clients[0]])]
    after = method("strategy.p=0.2", EXAMPLES[:6])
    after.load_state_dict(before.state_dict())
    assert [each.weight for each in after.assign(1, [after.clients[0]])] == first
    assert after.local_train.steps == 9


def test_the_order_of_replies_changes_no_bit(federate: Federate) -> None:
    states = [
        federate(f"{RUN} strategy.p=0.2 rounds=2", InProcessGrid(7, shuffle=seed))[0].state
        for seed in (None, 3)
    ]
    assert all(torch.equal(t, states[1][name]) for name, t in states[0].items())


def test_projection_keeps_the_direction_and_leaves_statistics_alone() -> None:
    state = {
        "weight": torch.tensor([3.0, 0.0]),
        "bias": torch.tensor([4.0]),
        "running_mean": torch.tensor([7.0]),
    }
    inside = projected(state, 5.0)
    assert inside["weight"] is state["weight"]
    found = projected(state, 2.5)
    assert found["weight"].tolist() == [1.5, 0.0]
    assert found["bias"].tolist() == [2.0]
    assert found["running_mean"].tolist() == [7.0]


def test_a_run_keeps_to_the_radius(federate: Federate) -> None:
    made, _ = federate(f"{RUN} strategy.radius=3 rounds=1")
    weights = [t for name, t in made.state.items() if not is_running_statistic(name)]
    norm = math.sqrt(sum(float(t.double().square().sum()) for t in weights))
    assert norm == pytest.approx(3, rel=1e-5)


# --- what cannot be run ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ("strategy.weights=serve", "did you mean serving"),
        ("strategy.weights=given", "expected weights given with a number for each exit"),
        ("strategy.given=[1,2,3]", "expected weights given with a number for each exit"),
        ("strategy.weights=given strategy.given=[1,0,2]", "expected numbers above 0"),
        ("strategy.p=1", "p is 1"),
        ("strategy.p=-0.1", "p is -0.1"),
        ("strategy.probabilities=[[1],[0.5,0.6]]", r"\[0.5, 0.6\] is row 2"),
        ("strategy.server_lr=0", "server_lr is 0"),
        ("strategy.radius=-1", "radius is -1"),
        ("strategy.variance_batches=1", "variance_batches is 1"),
        ("strategy.widths=[0.5,1] strategy.ratios=null", "differ in depth alone"),
        (
            "strategy.splits=[[2,1.0],[9,1.0]] strategy.ratios=null",
            "2 splits, but the nodes have 3",
        ),
        (
            "fleet=even",
            "the fleet has no nodes that serve: choose one that has, such as fleet=cis_7",
        ),
        ("fleet.serving=80-20-0", "exit 3 serves no requests"),
        ("strategy.p=0.1 strategy.probabilities=[[1],[0,1],[0,0,1]]", "expected one of them"),
        ("aggregation=median", "aggregation is median, which counts all updates alike"),
        ("aggregation=clipped aggregation.inner=trimmed-mean", "aggregation is trimmed-mean"),
    ],
)
def test_settings_that_make_no_sense_are_refused(overrides: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        compose(f"{TREE} {overrides}")


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ("strategy.p=0.5", "p is 0.5: expected less than 0.5"),
        ("strategy.probabilities=[[1],[0,1],[0.5,0.5,0]]", "no node would train exit 3"),
        ("strategy.weights=given strategy.given=[1,2]", "given has 2 rows: expected 3"),
        ("strategy.probabilities=[[1],[0.5,0.5]]", "probabilities has 2 rows: expected 3"),
    ],
)
def test_settings_of_another_number_of_exits_are_refused(overrides: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        strategy_of(compose(f"{TREE} {overrides}"))


def test_weights_that_need_no_rates_work_with_any_fleet() -> None:
    made = strategy_of(compose("strategy=serving_rate fleet=small strategy.weights=equal"))
    assert [level.number for level in made.levels] == [1, 2, 3, 4]
