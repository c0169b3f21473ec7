"""The split search and its levels, against the papers' tables."""

from __future__ import annotations

from itertools import pairwise

import pytest

from models import Slice
from models.task import Task
from strategies.levels.cost import COST_KINDS, CostKind, cost
from strategies.levels.planning import (
    PlanError,
    SearchGrid,
    Split,
    halving_ratios,
    levels_of,
    search_splits,
)

RESNET110 = Task("resnet110")
PUBLISHED = [Split(36, 0.70), Split(42, 0.70), Split(48, 0.75), Split(54, 1.0)]


def millions(number: float, digits: int) -> str:
    return f"{number / 1e6:.{digits}f}"


def test_resnet110_costs_what_scalefls_table_1_says() -> None:
    costs = [level.cost for level in levels_of(RESNET110, PUBLISHED)]
    assert [millions(c.parameters, 3) for c in costs] == ["0.210", "0.466", "0.867", "1.731"]
    assert costs[-1].parameters == 1_730_714
    assert [millions(c.macs, 2) for c in costs] == ["83.44", "99.68", "138.50", "253.15"]


def test_the_papers_flops_also_count_the_exits_activations() -> None:
    """The printed 83.47 / 99.71 / 138.55 M: three ReLUs and a pool a head count one a value."""
    printed = []
    for level in levels_of(RESNET110, PUBLISHED)[:-1]:
        channels = {16: level.slice.channels(32), 8: level.slice.channels(64)}
        sizes = [channels[16] * 16 * 16] + [channels[8] * 8 * 8] * (level.number - 1)
        printed.append(millions(level.cost.macs + 4 * sum(sizes), 2))
    assert printed == ["83.47", "99.71", "138.55"]


@pytest.mark.parametrize("tolerance", [0.08, 0.1])
def test_the_search_finds_the_published_splits(tolerance: float) -> None:
    grid = SearchGrid(depth_steps=9)
    assert search_splits(RESNET110, halving_ratios(4), tolerance, grid=grid) == PUBLISHED


def test_by_default_the_search_looks_at_every_unit() -> None:
    splits = search_splits(Task("resnet20"), halving_ratios(3))
    full = cost(Task("resnet20")).parameters
    for level, ratio in zip(levels_of(Task("resnet20"), splits), halving_ratios(3), strict=True):
        assert abs(level.cost.parameters / (ratio * full) - 1) <= 0.1


@pytest.mark.parametrize(
    ("model", "kind", "tolerance", "grid"),
    [
        *(("resnet20", kind, 0.1, SearchGrid()) for kind in COST_KINDS),
        ("msdnet24", "memory", 0.1, SearchGrid(width_step=0.35)),
        ("bert-mini", "memory", 0.02, SearchGrid()),
    ],
)
def test_the_search_keeps_to_its_tolerance_for_every_cost(
    model: str, kind: CostKind, tolerance: float, grid: SearchGrid
) -> None:
    task = Task(model, tokens=16)
    splits = search_splits(task, [0.5, 1], tolerance, kind, grid)
    share = levels_of(task, splits)[0].cost.of(kind) / cost(task, task.whole).of(kind)
    assert abs(share / 0.5 - 1) <= tolerance + 1e-4  # memory is searched for two images


def test_the_search_rounds_channels_as_its_levels_do() -> None:
    task, ratios = Task("resnet20", options=(("head", "pool"),)), [0.1, 0.3, 1]
    splits = search_splits(task, ratios, 0.02, rounding="ceil")
    for level, ratio in zip(levels_of(task, splits, "ceil"), ratios, strict=True):
        assert abs(level.cost.parameters / cost(task).parameters / ratio - 1) <= 0.02


def test_no_pair_within_tolerance_is_better_balanced() -> None:
    """Eq. (1) against a search that builds and counts each pair by itself."""
    task, grid = Task("resnet20"), SearchGrid(depth_steps=9, width_step=0.1)
    [found, _] = search_splits(task, [0.25, 1], 0.15, grid=grid)
    target = 0.25 * cost(task).parameters
    best = min(
        abs(depth / 9 - width)
        for depth in grid.depths(9)
        for width in grid.widths()
        if abs(cost(task, Slice(width, exits=(depth,))).parameters / target - 1) <= 0.15
    )
    assert abs(found.depth / 9 - found.width) == pytest.approx(best)


def test_an_infeasible_level_is_named_with_the_closest_split() -> None:
    error = r"level 1 of resnet20: no split costs 0.25 of .* 272,474 parameters within 0.0001; "
    with pytest.raises(PlanError, match=error + r"the closest is depth \d, width 0.\d+ at"):
        search_splits(Task("resnet20"), [0.25, 1], tolerance=0.0001)


def test_levels_hold_the_exits_of_the_levels_below_them() -> None:
    exits = [level.slice.exits for level in levels_of(RESNET110, PUBLISHED)]
    assert exits == [(36,), (36, 42), (36, 42, 48), (36, 42, 48, 54)]


def test_levels_of_width_alone_have_no_early_exits() -> None:
    levels = levels_of(Task("resnet20"), [Split(9, 0.25), Split(9, 0.5), Split(9, 1.0)])
    assert [level.slice for level in levels] == [
        Slice(width=width, exits=(9,)) for width in (0.25, 0.5, 1.0)
    ]


def test_where_no_deeper_pair_fits_a_level_is_as_deep_and_wider() -> None:
    task = Task("resnet20", options=(("head", "pool"),))
    ratios = [0.2, 0.4, 0.6, 0.8, 1]
    splits = search_splits(task, ratios)
    assert [split.depth for split in splits] == [7, 8, 9, 9, 9]
    levels = levels_of(task, splits)
    for level, ratio in zip(levels, ratios, strict=True):
        assert abs(level.cost.parameters / cost(task).parameters / ratio - 1) <= 0.1
    assert [level.slice.exits for level in levels] == [(7,), (7, 8), *[(7, 8, 9)] * 3]
    for less, more in pairwise(splits):
        assert (less.depth, less.width) < (more.depth, more.width)


def test_there_may_be_more_levels_than_units() -> None:
    task = Task("bert-tiny", 4, options=(("vocabulary", 1000),))
    levels = levels_of(task, search_splits(task, halving_ratios(5)))
    assert len({level.split for level in levels}) == len(levels) == 5
    assert all(level.slice.exits == tuple(sorted(set(level.slice.exits or ()))) for level in levels)


def test_above_the_whole_model_there_is_no_level() -> None:
    error = "level 2 of resnet20: no split costs 0.95 of .* within 0.1; the level below is whole"
    with pytest.raises(PlanError, match=error):
        search_splits(Task("resnet20"), [0.92, 0.95, 1])


def test_only_the_last_level_is_counted_without_the_exits_on_its_path() -> None:
    splits = [Split(3, 0.5), Split(9, 0.7), Split(9, 1.0)]
    levels = levels_of(Task("resnet20"), splits)
    assert [level.counted.exits for level in levels] == [(3,), (3, 9), (9,)]
    assert [level.slice.exits for level in levels] == [(3,), (3, 9), (3, 9)]


def test_a_split_that_the_model_does_not_have_is_refused() -> None:
    with pytest.raises(PlanError, match="depth 10: resnet20 has units 1 to 9"):
        levels_of(Task("resnet20"), [Split(10, 1.0)])
