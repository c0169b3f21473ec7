"""The seams of a method, each with a small method that overrides only this one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from protocol.work import Work
from server_app.building import strategy_of
from server_app.config import choices
from server_app.config.composing import ConfigError, compose
from strategies.aggregation.aggregators import AGGREGATORS
from tests.support import methods
from tests.support.federations import SMALL, Federate, federate_in
from tests.support.grids import InProcessGrid
from tests.support.methods import HalfSteps, OwnHeads, TakesTurns, TwiceARound, register

FEDAVG = "strategy=fedavg strategy.name={}"
"""A method of the tests has no YAML of its own: fedavg's sets the fields that all have."""

TURNS = "strategy=takes-turns"
WIDTHS = "strategy.ratios=null strategy.widths=[0.25,0.5,0.75,1.0]"
"""Levels that all have the network's last head."""


@pytest.fixture
def federate(tmp_path: Path) -> Federate:
    return federate_in(tmp_path)


@pytest.fixture
def turns(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """A method with a plan of its own, and a YAML that sets its fields and no others."""
    register(monkeypatch, TakesTurns)
    conf = tmp_path_factory.mktemp("conf")
    shutil.copytree(choices.CONF, conf, dirs_exist_ok=True)
    (conf / "strategy" / "takes-turns.yaml").write_text("name: takes-turns\n")
    monkeypatch.setattr(choices, "CONF", conf)


@pytest.mark.usefixtures("turns")
def test_a_client_trains_other_slices_in_other_rounds(federate: Federate) -> None:
    grid = InProcessGrid(4)
    strategy, lines = federate(TURNS, grid)
    works = [Work.read(m.content) for m in grid.sent if m.metadata.message_type == "train"]
    for work in works:
        level = strategy.levels[(work.told["hello"] + work.told["round"]) % 3]
        assert work.slice == level.slice
        assert work.told["round"] == work.round
    client_0 = [work.slice.blocks for work in works if work.told["hello"] == 0]
    assert client_0 == [strategy.levels[1].slice.blocks, strategy.levels[2].slice.blocks]
    assert strategy.coverage.lacks == {}
    replied = [{level: part["replied"] for level, part in line["slices"].items()} for line in lines]
    assert replied == [{"1": 1, "2": 2, "3": 1}, {"1": 1, "2": 1, "3": 2}]


@pytest.mark.usefixtures("turns")
def test_a_key_that_a_method_does_not_have_is_answered_with_those_that_it_has() -> None:
    choices = "choose from cost, name, norm, scaler, tolerance"
    with pytest.raises(ConfigError, match=f"no key 'widths' in strategy; {choices}"):
        compose(f"{TURNS} strategy.widths=[0.5,1]")


@pytest.mark.usefixtures("turns")
def test_blocks_that_a_client_does_not_hold_cost_it_no_bytes(federate: Federate) -> None:
    strategy, lines = federate(f"{TURNS} rounds=1")
    one, two, three = (lines[0]["slices"][level] for level in ("1", "2", "3"))
    sizes = {}
    for level in strategy.levels:
        form = strategy.submodels.at(level).form
        sizes[level.number] = sum(t.numel() * t.element_size() for t in form.values())
    assert 0 < one["up"] - sizes[1] < 2_000
    assert 0 < two["up"] - 2 * sizes[2] < 4_000
    assert 0 < three["up"] - sizes[3] < 2_000
    assert sizes[1] < 0.4 * sizes[3]


def test_a_client_may_have_two_slices_in_one_round(
    federate: Federate, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(monkeypatch, TwiceARound)
    grid = InProcessGrid(4)
    _, (line,) = federate(FEDAVG.format("twice-a-round rounds=1"), grid)
    seeds = [Work.read(m.content).seed for m in grid.sent if m.metadata.message_type == "train"]
    assert len(set(seeds)) == 5
    assert line["clients"]["sampled"] == line["clients"]["replied"] == 5
    assert {level: part["replied"] for level, part in line["slices"].items()} == {
        "1": 1, "2": 1, "3": 1, "4": 2,
    }  # fmt: skip


def test_banks_start_as_the_method_says_and_are_each_group_s_own(
    federate: Federate, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(monkeypatch, OwnHeads)
    before = strategy_of(compose(f"{SMALL} {FEDAVG.format('own-heads')} {WIDTHS} output=unused"))
    heads = [name for name in before.state if name.startswith("linear.bias@")]
    assert heads == [f"linear.bias@head{level}" for level in (1, 2, 3, 4)]
    assert all(not before.state[name].any() for name in heads)
    assert before.state["linear.bias"].any()
    after, _ = federate(f"{FEDAVG.format('own-heads')} {WIDTHS}")
    assert all(after.state[name].any() for name in heads)
    assert torch.equal(after.state["linear.bias"], before.state["linear.bias"])
    own = after.network(2).state_dict()["linear.bias"]
    assert torch.equal(own, after.state["linear.bias@head2"])


def test_a_server_step_follows_the_mean(
    federate: Federate, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(monkeypatch, HalfSteps)
    overrides = "rounds=1 strategy=decoupled strategy.name={}"
    half, _ = federate(overrides.format("half-steps"))
    start = strategy_of(compose(f"{SMALL} {overrides.format('half-steps')} output=unused"))
    monkeypatch.setattr(HalfSteps, "server_step", lambda self, state, previous: state)
    whole, _ = federate(overrides.format("half-steps"))
    for name, tensor in half.state.items():
        torch.testing.assert_close(tensor, (whole.state[name] + start.state[name]) / 2)


def test_a_method_says_which_submodels_are_tested(
    federate: Federate, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(monkeypatch, HalfSteps)
    _, lines = federate(f"{FEDAVG.format('half-steps')} evaluate.clients_every=1")
    assert list(lines[-1]["asked"]) == ["small", "validation"]
    assert {"local", "global"}.isdisjoint(lines[-1])
    assert 0 <= lines[-1]["small"] <= 1
    assert [n for n, level in lines[-1]["levels"].items() if "accuracy" in level] == ["smallest"]
    assert lines[-1]["mean"] == lines[-1]["levels"]["smallest"]["accuracy"]


# --- aggregators -------------------------------------------------------------------------------


def test_config_puts_another_aggregator_in_the_mean_s_place_for_any_method(
    federate: Federate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(AGGREGATORS, "newest", f"{methods.__name__}:KeepsTheNewest")
    strategy, _ = federate("strategy=scalefl aggregation.name=newest aggregation.unit=0.0 rounds=1")
    assert not strategy.state["linear.bias"].any()  # `unit` is the share that is kept


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("aggregation=krum", "unknown aggregation 'krum'; choose from clipped, median"),
        ("aggregation.name=x", "aggregation: unknown name 'x'; choose from clipped, median"),
        ("aggregation.unit=0", "aggregation: unit 0 is not a positive number"),
        ("aggregation.trim=0.1", "no key 'trim' in aggregation; choose from name, unit"),
        (
            "aggregation=trimmed_mean aggregation.trim=0.5",
            "aggregation: trim is 0.5: expected 0 or more, below 0.5",
        ),
        (
            "aggregation=norm_bound aggregation.times=0",
            "aggregation: times is 0: expected a number above 0",
        ),
        (
            "aggregation=norm_bound aggregation.bounds=3",
            "aggregation: bounds are 3: expected numbers above 0, or null",
        ),
        (
            "aggregation=clipped aggregation.of=mean",
            "aggregation: of is mean: expected slice or median",
        ),
        (
            "aggregation=clipped aggregation.of=median aggregation.bounds=[1,2]",
            "aggregation: bounds are [1, 2]: expected null beside of median",
        ),
        (
            "aggregation=clipped aggregation.inner=mean",
            "aggregation: inner: unknown name 'mean'; choose from clipped, median, nested-mean",
        ),
        (
            "aggregation=clipped aggregation.inner={name:trimmed-mean,trim:1}",
            "aggregation: inner: trim is 1: expected 0 or more, below 0.5",
        ),
        (
            "aggregation=clipped aggregation.inner={name:median,trim:0.1}",
            "aggregation: inner: no key 'trim' of median; choose from none",
        ),
        (
            "strategy=depthfl strategy.alpha=0.1 aggregation=median",
            "strategy: aggregation is median, but FedDyn (alpha 0.1) needs the mean of what "
            "clients sent: choose aggregation nested_mean or norm_bound, or alpha 0",
        ),
    ],
)
def test_a_wrong_aggregator_is_answered_with_the_choices(overrides: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        compose(overrides)
    assert str(raised.value).startswith(message)
