"""Submodels of blocks and widths: the sizes of NeFL's tables, and those found for ratios."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models import Task, family
from server_app.config.choices import choices
from server_app.config.composing import ConfigError, compose
from strategies.levels.cost import cost
from strategies.levels.patterns import (
    CutKind,
    euler_steps,
    read_pattern,
    search_patterns,
)
from strategies.levels.planning import Level, PlanError
from strategies.methods.nefl import NeFLSettings

FIVE = (0.2, 0.4, 0.6, 0.8, 1.0)
SIZES = {
    "resnet18_d": ("resnet18", (0.214, 0.393, 0.578, 0.808, 1.0)),
    "resnet18_do": ("resnet18", (0.214, 0.393, 0.578, 0.808, 1.0)),
    "resnet18_wd": ("resnet18", (0.198, 0.401, 0.603, 0.801, 1.0)),
    "resnet34_d": ("resnet34", (0.230, 0.390, 0.612, 0.806, 1.0)),
    "resnet34_do": ("resnet34", (0.230, 0.390, 0.612, 0.806, 1.0)),
    "resnet34_wd": ("resnet34", (0.202, 0.405, 0.559, 0.802, 1.0)),
    "resnet56_d": ("resnet56", (0.205, 0.405, 0.605, 0.805, 1.0)),
    "resnet56_do": ("resnet56", (0.205, 0.405, 0.605, 0.805, 1.0)),
    "resnet56_wd": ("resnet56", (0.205, 0.405, 0.621, 0.815, 1.0)),
    "resnet110_d": ("resnet110", (0.209, 0.391, 0.604, 0.797, 1.0)),
    "resnet110_do": ("resnet110", (0.209, 0.391, 0.604, 0.797, 1.0)),
    "resnet110_wd": ("resnet110", (0.208, 0.407, 0.623, 0.816, 1.0)),
    "resnet110_d_steep": ("resnet110", (0.045, 0.157, 0.350, 0.652, 1.0)),
    "resnet110_wd_steep": ("resnet110", (0.043, 0.160, 0.373, 0.639, 1.0)),
    "wide_resnet101_2_d": ("wide_resnet101_2", (0.508, 0.754, 1.0)),
    "vit_b_16_d": ("vit_b_16", (0.504, 0.752, 1.0)),
    "five_w": ("resnet18", (0.202, 0.401, 0.603, 0.801, 1.0)),
    "steep_w": ("resnet110", (0.045, 0.164, 0.373, 0.661, 1.0)),
    "three_w": ("resnet56", (0.520, 0.766, 1.0)),
}
"""The share of the parameters that each row of Tables 10 to 15 keeps, counted."""
PRINTED = {
    "resnet18_d": (0.20, 0.38, 0.57, 0.81, 1.0),
    "resnet34_d": (0.23, 0.39, 0.61, 0.81, 1.0),
    "resnet56_d": (0.2, 0.4, 0.6, 0.8, 1.0),
    "resnet110_d": (0.2, 0.4, 0.6, 0.8, 1.0),
    "wide_resnet101_2_d": (0.51, 0.75, 1.0),
    "resnet18_wd": FIVE,
    "resnet34_wd": (0.2, 0.4, 0.559, 0.8, 1.0),  # for 0.6: the row as printed is smaller
    "resnet56_wd": FIVE,
    "resnet110_wd": FIVE,
    "resnet110_wd_steep": (0.04, 0.16, 0.36, 0.64, 1.0),
}
"""The gamma_D that the paper prints, or the gamma of both cuts."""


def parameters(levels: list[Level]) -> list[float]:
    whole = levels[-1].cost.parameters
    return [level.cost.parameters / whole for level in levels]


@pytest.mark.parametrize(("name", "model", "sizes"), [(k, *v) for k, v in SIZES.items()])
def test_a_table_of_submodels_has_the_papers_sizes(
    name: str, model: str, sizes: tuple[float, ...]
) -> None:
    fleet = "three" if len(sizes) == 3 else "five"
    config = compose(f"strategy=nefl model={model} submodels={name} fleet={fleet}")
    assert isinstance(config.strategy, NeFLSettings)
    found = parameters(config.strategy.plan(config.task, config.fleet.budgets, early_exits=False))
    assert found == pytest.approx(sizes, abs=6e-3)
    if name in PRINTED:
        assert found == pytest.approx(PRINTED[name], abs=0.025)


def test_all_tables_of_submodels_are_tested() -> None:
    assert {*SIZES, "none"} == {*choices("submodels")}


def test_a_table_of_another_network_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'11 00 11 00'.*for each block of resnet56"):
        compose("strategy=nefl model=resnet56 submodels=resnet18_d")


def test_a_table_for_another_strategy_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"submodels=resnet18_d with strategy=heterofl.*nefl"):
        compose("strategy=heterofl model=resnet18 submodels=resnet18_d")


def test_a_pattern_names_the_blocks_of_each_stage() -> None:
    assert read_pattern("11 00 01 10", "resnet18") == ((0, 1), (), (1,), (0,))


def test_a_variant_does_not_take_the_submodels_of_another() -> None:
    with pytest.raises(
        ConfigError, match=r"strategy=nefl_d cuts depth, but its submodels cut both"
    ):
        compose("experiment=nefl_table1_resnet18 strategy=nefl_d")
    with pytest.raises(ConfigError, match=r"submodels=resnet18_do with strategy=heterofl"):
        compose("experiment=nefl_table1_resnet18 submodels=resnet18_do strategy=heterofl")


def test_a_pattern_without_a_block_is_refused() -> None:
    with pytest.raises(PlanError, match="'00 00 00 00': expected a 1"):
        read_pattern("00 00 00 00", "resnet18")


@pytest.mark.parametrize("pattern", ["11 00 01", "11 00 01 1", "11 00 02 10", "", "1100110"])
def test_a_pattern_that_the_network_has_not_is_refused(pattern: str) -> None:
    with pytest.raises(PlanError, match="such as '11 11 11 11'"):
        read_pattern(pattern, "resnet18")


def test_a_network_without_blocks_to_skip_says_so() -> None:
    with pytest.raises(PlanError, match="msdnet24 has no blocks"):
        read_pattern("11", "msdnet24")
    with pytest.raises(PlanError, match="msdnet24 has no blocks"):
        search_patterns(Task("msdnet24"), (0.5, 1.0), "depth", 0.1, "parameters", "ceil")


@pytest.mark.parametrize(
    ("pattern", "steps"),
    [
        ("110000000 110000000 110000000", [1, 8, 1, 8, 1, 8]),
        ("111000000 111000000 111100000", [1, 1, 7, 1, 1, 7, 1, 1, 1, 6]),
        ("111100000 111100000 111111000", [1, 1, 1, 6, 1, 1, 1, 6, 1, 1, 1, 1, 1, 4]),
        ("111111111 111111110 111111100", [*[1] * 9, *[1] * 7, 2, *[1] * 6, 3]),
        ("101000000 010000000 000000000", [2, 7, 8]),  # a gap before the first is nobody's
    ],
)
def test_a_step_takes_those_of_the_blocks_skipped_behind_it(pattern: str, steps: list[int]) -> None:
    """Table 12, NeFL-D_O."""
    kept = read_pattern(pattern, "resnet56")
    assert euler_steps(kept, family("resnet56").stages) == steps


@pytest.mark.parametrize("cut", ["width", "depth", "both"])
@pytest.mark.parametrize("kind", ["parameters", "macs"])
def test_submodels_found_for_ratios_cost_them(cut: CutKind, kind: str) -> None:
    task = Task("resnet32")
    levels = search_patterns(task, FIVE, cut, 0.1, kind, "ceil")  # type: ignore[arg-type]
    whole = cost(task).of(kind)
    assert [level.cost.of(kind) / whole for level in levels] == [
        pytest.approx(ratio, rel=0.1) for ratio in FIVE
    ]
    assert levels[-1].slice.blocks is None
    assert levels[-1].slice.width == 1
    if cut == "depth":
        assert {level.slice.width for level in levels} == {1.0}
    if cut == "width":
        assert {level.slice.blocks for level in levels} == {None}


def test_both_cuts_find_the_papers_blocks_of_resnet56() -> None:
    levels = search_patterns(Task("resnet56"), FIVE, "both", 0.1, "parameters", "ceil")
    counts = [[*map(len, level.slice.blocks)] for level in levels[:-1] if level.slice.blocks]
    assert counts == [[4, 4, 4], [6, 6, 6], [7, 7, 7], [8, 8, 8]]  # Table 12


def test_both_cuts_keep_more_blocks_where_too_few_would_not_cost_the_ratio() -> None:
    levels = search_patterns(Task("resnet18"), (0.5, 1.0), "both", 0.1, "parameters", "ceil")
    assert levels[0].slice.blocks == ((0, 1),) * 4  # one block of each stage has 0.44
    assert parameters(levels)[0] == pytest.approx(0.5, rel=0.02)


def test_depth_alone_keeps_like_shares_of_all_stages() -> None:
    levels = search_patterns(Task("resnet56"), (0.2, 1.0), "depth", 0.1, "parameters", "ceil")
    assert levels[0].slice.blocks == ((0, 1), (0, 1), (0, 1))  # Table 12, NeFL-D


def test_first_blocks_that_must_be_kept_are() -> None:
    task = Task("mobilenet_v2-mini")
    levels = search_patterns(task, (0.8, 1.0), "depth", 0.1, "parameters", "ceil")
    assert all(0 in kept for kept in levels[0].slice.blocks or ())
    with pytest.raises(PlanError, match=r"no submodel costs 0\.5 of the full model's"):
        search_patterns(task, (0.5, 1.0), "prefix", 0.1, "parameters", "ceil")


def test_a_prefix_keeps_the_first_blocks_of_the_whole_network() -> None:
    levels = search_patterns(Task("resnet56"), (0.4, 1.0), "prefix", 0.1, "parameters", "ceil")
    assert levels[0].slice.blocks == (tuple(range(9)), tuple(range(9)), (0, 1))


@pytest.mark.parametrize("model", ["resnet18", "resnet34"])
def test_a_prefix_costs_its_ratio_at_most(model: str) -> None:
    levels = search_patterns(Task(model), FIVE, "prefix", 0.1, "parameters", "ceil")
    shares = parameters(levels)
    assert all(share <= 1.1 * ratio for share, ratio in zip(shares, FIVE, strict=True))
    assert shares == sorted(shares)


def test_devices_get_the_largest_submodel_that_they_afford() -> None:
    ratios = (0.3, 1.0)
    with pytest.raises(PlanError, match=r"0\.3 of the full"):
        search_patterns(Task("resnet18"), ratios, "depth", 0.01, "parameters", "ceil")
    levels = search_patterns(
        Task("resnet18"), ratios, "depth", 0.01, "parameters", "ceil", at_most=True
    )
    assert 0.2 < parameters(levels)[0] < 0.3


def test_a_ratio_that_blocks_cannot_give_is_refused_with_the_closest() -> None:
    with pytest.raises(PlanError, match=r"level 1 of bert-tiny.*0\.1 of the full.*closest"):
        search_patterns(Task("bert-tiny"), (0.1, 1.0), "depth", 0.1, "parameters", "ceil")


@settings(max_examples=10, deadline=None)
@given(ratio=st.floats(0.15, 0.95), cut=st.sampled_from(["width", "both"]))
def test_what_is_found_is_within_the_tolerance_or_refused(ratio: float, cut: CutKind) -> None:
    task = Task("resnet20")
    try:
        levels = search_patterns(task, (ratio, 1.0), cut, 0.05, "parameters", "ceil")
    except PlanError:
        return
    assert parameters(levels)[0] == pytest.approx(ratio, rel=0.05)
