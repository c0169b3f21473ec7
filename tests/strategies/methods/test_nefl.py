"""NeFL as a whole: shared and separate tensors of submodels, step sizes, skipped blocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from models import extract
from models.slicing import is_running_statistic, is_step_size
from protocol.arrays import pack
from server_app.building import strategy_of
from server_app.config.composing import ConfigError, compose
from server_app.trained_level import load_level
from strategies.aggregation.nested_mean import NestedMean
from strategies.aggregation.update import Update
from strategies.methods.nefl import NeFL
from tests.support.federations import Federate, federate_in

FIVE = "fleet.budgets=[0.2,0.4,0.6,0.8,1.0] fleet.shares=[1,1,1,1,1] fleet.clients=10"
SMALL = (
    "strategy=nefl model=resnet20 fleet.clients=4 clients_per_round=4 rounds=2 train.epochs=1 "
    "train.batch_size=64 train.lr=0.05 dataset.max_train=240 dataset.max_test=60"
)
BLOCKS = (
    "strategy.ratios=null",
    'strategy.patterns=["111 110 000","110 100 100","111 111 111"]',
    "fleet.budgets=[0.3,0.6,1.0]",
    "fleet.shares=[1,1,1]",
)
THREE = "strategy.cut=depth strategy.tolerance=0.3 fleet.budgets=[0.3,0.6,1.0] fleet.shares=[1,1,1]"


@pytest.fixture
def federate(tmp_path: Path) -> Federate:
    return federate_in(tmp_path)


def nefl(*overrides: str) -> NeFL:
    strategy = strategy_of(compose([*SMALL.split(), *overrides]))
    assert isinstance(strategy, NeFL)
    return strategy


def three(*overrides: str) -> NeFL:
    """Return a strategy of three submodels of blocks."""
    return nefl(*BLOCKS, *overrides)


def update_of(strategy: NeFL, level: int, value: float) -> Update:
    """Return an update of a submodel in which all values are the same."""
    submodel = strategy.submodels.at(strategy.levels[level - 1])
    state = {
        name: torch.full(tensor.shape, value, dtype=tensor.dtype)
        for name, tensor in submodel.form.items()
    }
    return Update(state, submodel.map)


def average(strategy: NeFL, updates: Iterable[tuple[int, float]]) -> dict[str, Tensor]:
    mean = NestedMean()
    for level, value in updates:
        mean.add(update_of(strategy, level, value))
    return mean.result(strategy.state)


def unchanged(state: Mapping[str, Tensor], before: Mapping[str, Tensor], names: set[str]) -> bool:
    return all(torch.equal(state[name], before[name]) for name in names)


# --- Algorithm 2 -----------------------------------------------------------------------------


def test_the_worked_example_of_section_4_2() -> None:
    """A layer of submodels 1, 3 and 5, which are trained two, three and two times."""
    patterns = ["110 111 111", "011 111 111", "110 111 111", "011 111 111", "111 111 111"]
    strategy = nefl(
        "strategy.ratios=null",
        f"strategy.patterns={patterns}".replace("'", '"'),
        "strategy.gamma_w=[0.0625,0.25,0.25,0.5625,1.0]",
        *FIVE.split(),
    )
    clients = [(1, 1), (1, 2), (3, 3), (3, 4), (3, 5), (5, 6), (5, 7)]
    weight = average(strategy, clients)["layer1.0.conv1.weight"]
    assert torch.equal(weight[:4, :4], torch.full((4, 4, 3, 3), 28 / 7))
    assert torch.equal(weight[4:8, :8], torch.full((4, 8, 3, 3), 25 / 5))
    assert torch.equal(weight[:4, 4:8], torch.full((4, 4, 3, 3), 25 / 5))
    assert torch.equal(weight[8:], torch.full((8, 16, 3, 3), 13 / 2))


def test_submodels_of_equal_width_average_together() -> None:
    strategy = three()
    after = average(strategy, [(1, 1), (2, 4), (2, 10), (3, 5)])
    assert after["layer1.0.conv1.weight"].unique().tolist() == [5]  # all hold it
    assert after["layer1.2.conv1.weight"].unique().tolist() == [3]  # 1 and 3
    assert after["layer3.0.conv2.weight"].unique().tolist() == [pytest.approx(19 / 3)]  # 2 and 3
    assert after["layer3.2.conv1.weight"].unique().tolist() == [5]  # 3 alone


def test_blocks_that_nobody_held_keep_their_values() -> None:
    strategy = three()
    after = average(strategy, [(1, 1), (2, 4)])
    lacking = {n for n in strategy.state if n.startswith(("layer2.2", "layer3.1", "layer3.2"))}
    assert lacking
    assert unchanged(after, strategy.state, lacking)


def test_inconsistent_parameters_are_averaged_within_their_submodel_alone() -> None:
    strategy = three()
    after = average(strategy, [(1, 1), (1, 3), (3, 8)])
    for name, value in (("level1", 2), ("level3", 8)):
        for tensor in ("layer1.0.step", "layer1.0.bn1.weight", "layer1.0.bn1.running_mean"):
            assert after[f"{tensor}@{name}"].unique().tolist() == [value]


def test_a_bank_without_a_client_in_a_round_keeps_its_values() -> None:
    strategy = three()
    after = average(strategy, [(1, 1), (3, 8)])
    banks = {name for name in strategy.state if name.endswith("@level2")}
    assert banks
    assert unchanged(after, strategy.state, banks)


@settings(max_examples=15, deadline=None)
@given(sampled=st.lists(st.integers(1, 3), min_size=1, max_size=6))
def test_submodels_that_come_back_untrained_change_nothing(sampled: list[int]) -> None:
    strategy, mean = three(), NestedMean()
    for level in sampled:
        submodel = strategy.submodels.at(strategy.levels[level - 1])
        mean.add(Update(extract(strategy.state, submodel.map), submodel.map))
    assert unchanged(mean.result(strategy.state), strategy.state, set(strategy.state))


# --- banks by rule -----------------------------------------------------------------------------


def banked(strategy: NeFL, level: int = 1) -> set[str]:
    regions = strategy.submodels.at(strategy.levels[level - 1]).map.regions
    return {name for name, region in regions.items() if region.banked}


def test_batch_norms_and_steps_are_inconsistent_by_default() -> None:
    strategy = three()
    names = strategy.submodels.at(strategy.levels[0]).form
    assert banked(strategy) == {
        name for name in names if ".bn" in f".{name}" or "downsample.1" in name or "step" in name
    }


def test_layer_norms_are_consistent_by_default_and_may_be_inconsistent() -> None:
    vit = ["model=vit-micro", "strategy.tolerance=0.3"]
    consistent, own = nefl(*vit), nefl(*vit, "strategy.inconsistent=[layer-norm]")
    assert banked(consistent) == {n for n in banked(consistent) if is_step_size(n)} != set()
    assert "encoder.layers.encoder_layer_0.ln_1.weight" in banked(own)
    assert not any(is_step_size(name) for name in banked(own))


def test_tensors_may_be_inconsistent_by_name() -> None:
    strategy = three("strategy.inconsistent=[linear.*]")
    rest = {name for name in banked(strategy) if not is_running_statistic(name)}
    assert rest == {"linear.weight", "linear.bias"}


def test_a_rule_that_chooses_nothing_is_refused_with_the_kinds() -> None:
    with pytest.raises(ConfigError, match=r"'fc\.\*'.*batch-norm, layer-norm, group-norm, step"):
        three("strategy.inconsistent=[fc.*]")


# --- step sizes --------------------------------------------------------------------------------


def steps_of(strategy: NeFL, level: int) -> list[float]:
    part = extract(strategy.state, strategy.submodels.at(strategy.levels[level - 1]).map)
    return [float(value) for name, value in part.items() if is_step_size(name)]


def test_steps_start_at_one_or_with_those_of_the_blocks_skipped() -> None:
    assert steps_of(three(), 2) == [1, 1, 1, 1]
    assert steps_of(three("strategy.first_steps=euler"), 2) == [1, 2, 3, 3]
    assert steps_of(three("strategy.first_steps=euler"), 3) == [1] * 9


def test_both_branches_of_a_vits_block_start_alike() -> None:
    tiers = ("fleet.budgets=[0.5,1.0]", "fleet.shares=[1,1]", "strategy.ratios=null")
    strategy = nefl(
        "model=vit-micro", *tiers, 'strategy.patterns=["1100","1111"]', "strategy.first_steps=euler"
    )
    assert steps_of(strategy, 1) == [1, 1, 3, 3]


def test_blocks_without_a_shortcut_have_no_step_to_start_with() -> None:
    tiers = ("fleet.budgets=[0.5,1.0]", "fleet.shares=[1,1]", "strategy.ratios=null")
    patterns = '["1 10 110 1001 100 111 1","1 11 111 1111 111 111 1"]'
    mobile = ("model=mobilenet_v2-mini", *tiers, f"strategy.patterns={patterns}")
    strategy = nefl(*mobile, "strategy.first_steps=euler")
    assert steps_of(strategy, 1) == [2, 1, 1, 1]  # of stages 3, 4 and 6
    assert steps_of(strategy, 2) == [1] * 10


@pytest.mark.parametrize("steps", ["learnable", "constant"])
def test_steps_are_learnt_for_each_submodel_unless_constant(federate: Federate, steps: str) -> None:
    euler = f"strategy.first_steps=euler {THREE}"
    strategy, _ = federate(f"{SMALL} model.norm=null {euler} strategy.steps={steps}")
    assert isinstance(strategy, NeFL)
    first = nefl(*euler.split())
    before, after = ([steps_of(each, n) for n in (1, 2, 3)] for each in (first, strategy))
    if steps == "constant":
        assert after == before
    else:
        pairs = zip(chain(*before), chain(*after), strict=True)
        assert all(then != now for then, now in pairs)
        assert len({after[0][0], after[1][0], after[2][0]}) == 3


def test_a_network_without_steps_is_refused_unless_they_are_one() -> None:
    tiers = ["fleet.budgets=[0.5,1.0]", "fleet.shares=[1,1]", "dataset=docstrings"]
    bert = ["strategy=nefl", "model=bert-tiny", *tiers]
    with pytest.raises(ConfigError, match=r"bert-tiny has no step sizes.*resnet56.*vit_b_16"):
        compose(bert)
    with pytest.raises(ConfigError, match="bert-tiny has no step sizes"):
        compose([*bert, "strategy.steps=constant", "strategy.first_steps=euler"])
    compose([*bert, "strategy.steps=constant"])


# --- skipped blocks ------------------------------------------------------------------------------


def test_a_fifth_of_resnet56_by_depth_sends_a_fifth_of_the_bytes() -> None:
    strategy = strategy_of(compose("strategy=nefl model=resnet56 submodels=resnet56_d fleet=five"))
    sizes = [
        sum(len(array.data) for array in pack(extract(strategy.state, submodel.map)).values())
        for submodel in map(strategy.submodels.at, strategy.levels)
    ]
    assert sizes[0] / sizes[-1] <= 0.22


def test_a_round_sends_less_to_smaller_submodels_and_trains_all_that_is_held(
    federate: Federate,
) -> None:
    strategy, lines = federate(f"{SMALL} model.norm=null {THREE} rounds=1")
    before = nefl(*THREE.split()).state
    still = {name for name, tensor in strategy.state.items() if torch.equal(tensor, before[name])}
    banks_of_the_full_network = {name for name in before if f"{name}@level3" in before}
    assert still == banks_of_the_full_network  # of which each submodel has its own
    down = [lines[-1]["slices"][level]["down"] for level in "123"]
    replied = [lines[-1]["slices"][level]["replied"] for level in "123"]
    each = [size / count for size, count in zip(down, replied, strict=True)]
    assert each[0] < 0.4 * each[2]


# --- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["strategy.splits=[[3,1.0],[9,1.0]]", "strategy.ratios=null"], "early exits, which NeFL"),
        (
            ["strategy.gamma_w=[0.5,1.0]"],
            "ratios and gamma_w are given: expected one of .*patterns",
        ),
        (["strategy.gamma_w=[0.5,0.9]", "strategy.ratios=null"], "gamma_w is .*rise .* to 1"),
        (
            ['strategy.patterns=["111 111 110"]', "strategy.ratios=null"],
            r"patterns are \['111 111 110'\]: expected the full model",
        ),
        (
            [
                'strategy.patterns=["111 111 111"]',
                "strategy.gamma_w=[0.5,1.0]",
                "strategy.ratios=null",
            ],
            "2 of gamma_w, but 1 patterns",
        ),
        (
            [
                'strategy.patterns=["111 111 110","100 000 000","111 111 111"]',
                "strategy.ratios=null",
            ],
            r"patterns keep \[198210, 8251, 272195\] parameters: expected the smallest",
        ),
        (
            ["strategy.widths=[0.5,1.0]", "strategy.ratios=null", "strategy.cut=depth"],
            "cut is depth, but the submodels that are given cut width",
        ),
        (
            ["strategy.first_steps=euler", "strategy.inconsistent=[batch-norm]"],
            "first_steps is euler.*expected step among",
        ),
        (
            ["strategy.first_steps=euler", "model.steps=none"],
            "first_steps is euler.*model.steps none",
        ),
        (["strategy.cut=deep"], "unknown strategy.cut 'deep'; did you mean depth"),
    ],
)
def test_settings_that_make_no_submodels_are_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        nefl(*overrides)


# --- records -------------------------------------------------------------------------------------


def test_a_resumed_run_ends_with_the_same_banks_and_a_level_is_loaded_with_its_own(
    federate: Federate, tmp_path: Path
) -> None:
    options = f"{THREE} fleet.spread=1 model.norm=null"
    whole, _ = federate(f"strategy=nefl {options} name=whole rounds=2")
    federate(f"strategy=nefl {options} name=part rounds=1")
    resumed, _ = federate(f"resume={tmp_path / 'part'} rounds=2")
    assert unchanged(resumed.state, whole.state, set(whole.state))
    level = load_level(tmp_path / "whole", 1)
    own = level.net.state_dict()
    steps = [name for name in own if is_step_size(name)]
    assert steps
    for name in ("bn1.weight", "bn1.running_mean", *steps):
        assert torch.equal(own[name], whole.state[f"{name}@level1"])


def test_pretrained_weights_are_in_every_submodel_part_by_part() -> None:
    """Padded shortcuts, as the published ResNets for CIFAR have them."""
    config = compose([*SMALL.split(), *THREE.split(), "model.shortcut=A", "fleet.spread=1"])
    torch.manual_seed(0)
    weights = {
        name: torch.rand_like(tensor) if tensor.is_floating_point() else tensor + 7
        for name, tensor in config.task.build(config.task.whole).state_dict().items()
        if not is_step_size(name)
    }
    strategy = strategy_of(config, weights=weights)
    for level in strategy.levels:
        part = extract(strategy.state, strategy.submodels.at(level).map)
        assert {name for name in part if name not in weights} == set(filter(is_step_size, part))
        for name in part.keys() & weights.keys():
            inside = tuple(slice(0, size) for size in part[name].shape)
            assert torch.equal(part[name], weights[name][inside]), name
