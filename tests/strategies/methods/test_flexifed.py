"""FlexiFed: the common first layers of architectures, and the clients that share them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from models import Slice
from protocol.reports import Profile
from server_app.building import strategy_of
from server_app.config.composing import compose
from strategies.aggregation.nested_mean import NestedMean
from strategies.aggregation.update import Update
from strategies.methods.flexifed import FlexiFed
from strategies.nodes.enrolment import Client
from tests.support.federations import Federate, federate_in
from tests.support.grids import InProcessGrid

SMALL = (
    "strategy=flexifed model=preresnet-micro fleet.clients=4 fleet.budgets=[1.0] fleet.shares=[1] "
    "clients_per_round=4 rounds=1 strategy.choose=largest train.epochs=1 train.batch_size=32 "
    "dataset.max_train=160 dataset.max_test=40 evaluate.every=0"
)
TWO, THREE = (0, 1), (0, 1, 2)
A = Slice((2 / 3,) * 3, (TWO, THREE, TWO))
B = Slice((2 / 3,) * 3, (THREE, TWO, TWO))
C = Slice((2 / 3,) * 3, (THREE, THREE, THREE))
"""A differs from B and C behind layer1.1; B and C are the same up to layer2.1."""


def client(number: int) -> Client:
    return Client(number, 100 + number, Profile(number, 4, 40, None, "cpu"))


def flexifed(rule: str, *choices: Slice) -> FlexiFed:
    strategy = strategy_of(compose(f"{SMALL} strategy.rule={rule}"))
    assert isinstance(strategy, FlexiFed)
    for number, choice in enumerate(choices):
        strategy.roster.clients[number] = client(number)
        strategy.choices[number] = choice
    strategy.prepare()
    return strategy


def after(strategy: FlexiFed, *values: float, absent: tuple[int, ...] = ()) -> dict[str, Tensor]:
    """Return the state after a round in which client n sends values[n] everywhere."""
    mean = NestedMean()
    for number, value in enumerate(values):
        if number in absent:
            continue
        level = strategy.level_of(client(number))
        submodel = strategy.submodels.at(level)
        state = {k: torch.full(t.shape, value, dtype=t.dtype) for k, t in submodel.form.items()}
        mean.add(Update(state, submodel.map))
    return mean.result(strategy.state)


def own(strategy: FlexiFed, state: dict[str, Tensor], number: int, name: str) -> float:
    """Return the value that a client gets of a tensor."""
    region = strategy.submodels.at(strategy.level_of(client(number))).map.regions[name]
    (value,) = region.of(state[region.source]).unique().tolist()
    return float(value)


COMMON = "layer1.1.conv2.weight"
BRANCH = "layer1.2.conv1.weight"
"""The first layer that B and C have, and A has not."""


@pytest.mark.parametrize(
    ("rule", "branch", "heads"),
    [
        ("basic", [2, 4, 9], [1, 2, 4, 9]),
        ("clustered", [3, 3, 9], [1, 3, 3, 9]),
        ("max", [5, 5, 5], [1, 3, 3, 9]),
    ],
)
def test_the_worked_example(rule: str, branch: list[float], heads: list[float]) -> None:
    """A sends 1, B and another B 2 and 4, C 9."""
    strategy = flexifed(rule, A, B, B, C)
    state = after(strategy, 1, 2, 4, 9)
    assert [own(strategy, state, n, COMMON) for n in range(4)] == [4] * 4
    assert [own(strategy, state, n, BRANCH) for n in (1, 2, 3)] == branch
    assert [own(strategy, state, n, "fc.weight") for n in range(4)] == heads
    assert own(strategy, state, 0, "layer2.2.conv1.weight") == 1
    assert own(strategy, state, 3, "layer2.2.conv1.weight") == 9  # the same name, not common


def test_statistics_and_norms_are_layers_like_others() -> None:
    strategy = flexifed("max", A, B, B, C)
    state = after(strategy, 1, 2, 4, 9)
    assert own(strategy, state, 0, "layer1.1.act2.norm.weight") == 4
    assert own(strategy, state, 3, "layer1.2.act1.norm.weight") == 5


@pytest.mark.parametrize("rule", ["basic", "clustered", "max"])
def test_what_belongs_to_the_absent_stays(rule: str) -> None:
    strategy = flexifed(rule, A, B, B, C)
    state = after(strategy, 1, 2, 4, 9, absent=(0,))
    regions = strategy.submodels.at(strategy.level_of(client(0))).map.regions
    source = regions["fc.weight"].source
    assert torch.equal(state[source], strategy.state[source])
    assert own(strategy, state, 0, COMMON) == 5


def test_one_architecture_is_shared_whole_but_for_basic() -> None:
    assert not any("@" in name for name in flexifed("max", B, B).state)
    basic = flexifed("basic", B, B)
    assert not any("@" in name for name in basic.state)  # common to all is all
    assert len(basic.levels) == 2


def test_networks_of_another_width_share_nothing_behind_the_stem() -> None:
    wide = Slice((1.0,) * 3, (TWO,) * 3)
    narrow = Slice((2 / 3,) * 3, (TWO,) * 3)
    strategy = flexifed("max", narrow, wide)
    regions = strategy.submodels.at(strategy.levels[0]).map.regions
    shared = [name for name, region in regions.items() if not region.banked]
    assert all(name.startswith(("conv1", "layer1.0.act1")) for name in shared)


def test_a_list_that_is_the_beginning_of_another() -> None:
    strategy = flexifed("max", B, C)
    layers = strategy._layers[1]
    strategy._layers[1], strategy._layers[2] = layers[:3], layers
    assert strategy.bank(layers[2][0], strategy.levels[0]) is None
    assert strategy.bank(layers[3][0], strategy.levels[1]) == "level2"


@pytest.fixture
def federate(tmp_path: Path) -> Federate:
    found = federate_in(tmp_path)
    return lambda overrides="", grid=None: found(
        overrides if overrides.startswith("resume") else f"{SMALL} {overrides}", grid
    )


@pytest.mark.parametrize("rule", ["basic", "clustered", "max"])
def test_a_run_and_its_resumption_are_the_same_bit_for_bit(
    federate: Federate, tmp_path: Path, rule: str
) -> None:
    chosen = f"strategy.rule={rule}"
    whole, lines = federate(f"{chosen} name=whole rounds=2")
    federate(f"{chosen} name=part rounds=1")
    again, _ = federate(f"resume={tmp_path / 'part'} rounds=2")
    assert all(torch.equal(whole.state[name], t) for name, t in again.state.items())
    assert len(whole.levels) == (4 if rule == "basic" else 2)
    assert ("global" in lines[-1]) == (rule != "basic")


def test_nobody_joins_later_where_each_client_has_a_model_of_its_own() -> None:
    strategy = flexifed("basic", A, B)
    refused = strategy.ask(InProcessGrid(0), [client(3)])
    assert "joined after the start" in refused[3]
