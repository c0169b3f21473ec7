"""The split search and the sorting of budgets, on a toy whose costs are a table."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models import Slice
from models.task import Task
from strategies.levels import planning
from strategies.levels.cost import Cost
from strategies.levels.planning import (
    PlanError,
    SearchGrid,
    Split,
    cluster_budgets,
    halving_ratios,
    levels_of,
    search_depths,
    search_splits,
)

QUARTERS = SearchGrid(width_step=0.25)
WHOLE = 800

Table = dict[tuple[int, float], int]
"""Cost of each pair of depth and width; other pairs cost ten times the whole."""


def toy(monkeypatch: pytest.MonkeyPatch, table: Table, own_exits: tuple[int, ...] = ()) -> Task:
    """Return a task of four units whose slices cost what the table says, and 800 as a whole."""

    def cost(task: Task, slice: Slice, batch: int = 1) -> Cost:
        return Cost(parameters=WHOLE)

    def path_costs(task: Task, slice: Slice, kind: str) -> object:
        def of(exits: tuple[int, ...]) -> Cost:
            width = cast(float, slice.width)
            return Cost(parameters=table.get((max(exits), width), 10 * WHOLE))

        return SimpleNamespace(of=of)

    monkeypatch.setattr(planning, "cost", cost)
    monkeypatch.setattr(planning, "path_costs", path_costs)
    whole = Slice(exits=(*own_exits, 4)) if own_exits else Slice()
    return cast(Task, SimpleNamespace(model="toy", units=4, whole=whole))


# --- the grid ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "units", "depths"),
    [(None, 4, [1, 2, 3, 4]), (3, 9, [3, 6, 9]), (8, 3, [1, 2, 3]), (1, 9, [9])],
)
def test_depths_are_units_or_equal_steps(steps: int | None, units: int, depths: list[int]) -> None:
    assert SearchGrid(depth_steps=steps).depths(units) == depths


@pytest.mark.parametrize(
    ("step", "widths"), [(0.25, [1, 0.75, 0.5, 0.25]), (0.3, [0.9, 0.6, 0.3]), (1.0, [1])]
)
def test_widths_are_whole_steps_from_the_widest_down(step: float, widths: list[float]) -> None:
    assert SearchGrid(width_step=step).widths() == widths


def test_without_a_step_widths_are_twentieths() -> None:
    assert SearchGrid().widths()[:3] == [1, 0.95, 0.9]
    assert len(SearchGrid().widths()) == 20


def test_a_width_step_beyond_the_whole_is_refused() -> None:
    with pytest.raises(PlanError, match=r"width step 1.01: expected 0 < step <= 1"):
        SearchGrid(width_step=1.01)


@pytest.mark.parametrize("steps", [0, -1])
def test_an_empty_grid_is_refused(steps: int) -> None:
    with pytest.raises(PlanError, match=f"depth grid {steps}: expected at least 1"):
        SearchGrid(depth_steps=steps)
    with pytest.raises(PlanError, match="expected 0 < step <= 1"):
        SearchGrid(width_step=steps)


def test_each_level_costs_half_of_the_next() -> None:
    assert halving_ratios(1) == [1]
    assert halving_ratios(4) == [0.125, 0.25, 0.5, 1]
    with pytest.raises(PlanError, match="0 levels: expected at least 1"):
        halving_ratios(0)


# --- the search --------------------------------------------------------------------------------


@pytest.mark.parametrize("ratios", [[], [0.5], [0.5, 0.25, 1], [0, 1], [-0.1, 1], [0.5, 2]])
def test_ratios_must_rise_to_one(ratios: list[float]) -> None:
    with pytest.raises(PlanError, match="expected to rise from above 0 to 1"):
        search_splits(Task("resnet20"), ratios)


@pytest.mark.parametrize(
    ("table", "best"),
    [
        ({(1, 0.25): 390}, (1, 0.25)),
        ({(2, 0.75): 400, (3, 0.5): 400, (2, 0.5): 430}, (2, 0.5)),  # depth and width agree
        ({(2, 0.5): 380, (3, 0.75): 404}, (3, 0.75)),  # else the cost is closest to 400
        ({(2, 0.5): 396, (3, 0.75): 380}, (2, 0.5)),
        ({(2, 0.5): 380, (3, 0.75): 420}, (3, 0.75)),  # else the deeper one
        ({(4, 0.25): 440, (1, 1.0): 360}, (4, 0.25)),  # a tenth either way
        ({(1, 1.0): 360, (2, 0.5): 441, (3, 0.75): 359}, (1, 1.0)),
    ],
)
def test_the_best_balanced_pair_within_a_tenth_is_found(
    table: Table, best: tuple[int, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    splits = search_splits(toy(monkeypatch, table), [0.5, 1], 0.1 + 1e-12, grid=QUARTERS)
    assert splits == [Split(*best), Split(4, 1.0)]
    assert search_splits(toy(monkeypatch, table), [1]) == [Split(4, 1.0)]


def test_a_cost_at_the_tolerance_itself_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    task = toy(monkeypatch, {(3, 1.0): 300})
    assert search_splits(task, [0.5, 1], 0.25, grid=QUARTERS)[0] == Split(3, 1.0)


def test_without_a_tolerance_it_is_a_tenth(monkeypatch: pytest.MonkeyPatch) -> None:
    task = toy(monkeypatch, {(3, 1.0): 460, (3, 0.75): 300})
    error = (
        r"level 1 of toy: no split costs 0.5 of the full model's 800 parameters within 0.1; "
        r"the closest is depth 3, width 1 at 1.150 of the target"
    )
    with pytest.raises(PlanError, match=error):
        search_splits(task, [0.5, 1], grid=QUARTERS)


def test_widths_are_looked_through_until_all_cost_too_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = {(4, 0.5): 400} | {(depth, 0.5): 300 for depth in (1, 2, 3)}
    task = toy(monkeypatch, table | {(depth, 0.25): 200 for depth in range(1, 5)})
    looked_at: list[float] = []
    widths = [1, 0.75, 0.5, 0.25, 0.125]
    monkeypatch.setattr(SearchGrid, "widths", lambda grid: _noted(widths, looked_at))
    assert search_splits(task, [0.5, 1])[0] == Split(4, 0.5)
    assert looked_at == [1, 0.75, 0.5, 0.25]


def _noted(widths: list[float], looked_at: list[float]) -> Iterator[float]:
    for width in widths:
        looked_at.append(width)
        yield width


def test_a_level_is_deeper_than_the_one_below_though_a_wider_pair_is_better_balanced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = {(2, 0.25): 200, (2, 0.5): 400, (4, 0.25): 400}
    splits = search_splits(toy(monkeypatch, table), [0.25, 0.5, 1], grid=QUARTERS)
    assert splits == [Split(2, 0.25), Split(4, 0.25), Split(4, 1.0)]


def test_where_none_is_deeper_a_level_is_as_deep_and_wider(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {(3, 0.5): 200, (3, 0.75): 400, (1, 0.75): 400, (3, 0.25): 400}
    splits = search_splits(toy(monkeypatch, table), [0.25, 0.5, 1], grid=QUARTERS)
    assert splits == [Split(3, 0.5), Split(3, 0.75), Split(4, 1.0)]


def test_two_levels_are_never_the_same_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    task = toy(monkeypatch, {(3, 0.5): 400})
    with pytest.raises(PlanError, match=r"level 2 of toy: no split costs 0.5 of"):
        search_splits(task, [0.5, 0.5, 1], grid=QUARTERS)


# --- levels ------------------------------------------------------------------------------------


def test_at_full_depth_the_networks_own_exits_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    task = toy(monkeypatch, {}, own_exits=(2,))
    splits = [Split(1, 0.5), Split(3, 0.5), Split(4, 0.75), Split(4, 1.0)]
    levels = levels_of(task, splits)
    assert [level.number for level in levels] == [1, 2, 3, 4]
    assert [level.slice.exits for level in levels] == [(1,), (1, 3), (1, 3, 4), (1, 3, 4)]
    assert [level.counted.exits for level in levels] == [(1,), (1, 3), (1, 2, 3, 4), (2, 4)]


def test_a_last_level_that_is_not_as_deep_as_the_network_counts_its_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    levels = levels_of(toy(monkeypatch, {}), [Split(1, 0.5), Split(3, 1.0)])
    assert [level.counted.exits for level in levels] == [(1,), (1, 3)]


@pytest.mark.parametrize("depth", [0, 5])
def test_a_depth_that_the_network_does_not_have_is_refused(
    depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PlanError, match=f"depth {depth}: toy has units 1 to 4"):
        levels_of(toy(monkeypatch, {}), [Split(depth, 1.0)])


def test_no_splits_are_no_levels(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PlanError, match="no splits: expected one for each level"):
        levels_of(toy(monkeypatch, {}), [])


# --- depth alone -------------------------------------------------------------------------------

DEPTHS: Table = {(1, 1.0): 100, (2, 1.0): 180, (3, 1.0): 440, (4, 1.0): 800}


@pytest.mark.parametrize(
    ("ratios", "depths"),
    [
        ([0.125, 0.25, 0.5, 1], [1, 2, 3, 4]),  # 440 is just 0.1 above half of 800
        ([0.13, 0.51, 1], [1, 3, 4]),
        ([0.13, 0.14, 0.15, 1], [1, 1, 1, 4]),
        ([0.95, 1], [4, 4]),
        ([1], [4]),
    ],
)
def test_a_level_of_depth_is_the_deepest_that_it_affords(
    monkeypatch: pytest.MonkeyPatch, ratios: list[float], depths: list[int]
) -> None:
    found = search_depths(toy(monkeypatch, DEPTHS), ratios)
    assert found == [Split(depth, 1.0) for depth in depths]


def test_a_first_unit_that_costs_too_much_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told = (
        "level 1 of toy: no depth costs 0.1 of the full model's 800 parameters at most, within "
        "0.1; the closest is depth 1 at 1.250 of the target"
    )
    with pytest.raises(PlanError, match=told):
        search_depths(toy(monkeypatch, DEPTHS), [0.1, 1])


def test_ratios_of_depths_rise_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PlanError, match="expected to rise from above 0 to 1"):
        search_depths(toy(monkeypatch, DEPTHS), [0.5, 0.25, 1])


# --- budgets -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budgets", "levels", "level_of", "ratios"),
    [
        ([5, 5], 1, (1, 1), (1,)),
        ([1, 2, 5], 3, (1, 2, 3), (0.2, 0.4, 1)),  # as many as there are budgets
        ([1, 2, 5], 2, (1, 1, 2), (0.2, 1)),
        ([1, 5], None, (1, 2), (0.2, 1)),
        ([1, 2, 5, 7], None, (1, 2, 3, 3), (0.2, 0.4, 1)),
        ([0.1, 0.11, 1, 5], None, (1, 1, 2, 3), (0.02, 0.2, 1)),  # two separate the three best
    ],
)
def test_budgets_are_sorted_into_levels(
    budgets: list[float],
    levels: int | None,
    level_of: tuple[int, ...],
    ratios: tuple[float, ...],
) -> None:
    clusters = cluster_budgets(budgets, full_cost=5, levels=levels)
    assert clusters.level_of == level_of
    assert clusters.ratios == pytest.approx(ratios)


@pytest.mark.parametrize(
    ("budgets", "levels", "message"),
    [
        ([0, 5], None, "all above 0"),
        ([1, 2, 5], 0, "0 levels: these budgets make 1 to 3"),
        ([1, 2, 5], 4, "4 levels: these budgets make 1 to 3"),
    ],
)
def test_budgets_and_levels_that_do_not_go_together_are_refused(
    budgets: list[float], levels: int | None, message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        cluster_budgets(budgets, full_cost=5, levels=levels)


def test_no_more_than_eight_levels_are_made_of_budgets() -> None:
    eight_pairs = [base * factor for base in 2.0 ** -np.arange(1, 9) for factor in (1, 1.01)]
    clusters = cluster_budgets([*eight_pairs, 1.02], full_cost=1.02)
    assert len(clusters.ratios) == 8


def test_budgets_become_levels_that_all_their_clients_afford() -> None:
    clusters = cluster_budgets([1.0, 9, 0.9, 4, 4.2, 1.1, 100, 150, 40], full_cost=100, levels=4)
    assert clusters.level_of == (1, 2, 1, 2, 2, 1, 4, 4, 3)
    assert clusters.ratios == pytest.approx((0.009, 0.04, 0.4, 1.0))


def test_the_number_of_levels_follows_from_the_budgets() -> None:
    clusters = cluster_budgets([1, 1.1, 0.9, 4, 4.2, 16, 17, 100, 150], full_cost=100)
    assert clusters.level_of == (1, 1, 1, 2, 2, 3, 3, 4, 4)


def test_equal_budgets_are_one_level() -> None:
    assert cluster_budgets([5, 5, 5], full_cost=5).level_of == (1, 1, 1)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=20))
def test_nobody_is_given_more_than_its_budget(budgets: list[float]) -> None:
    clusters = cluster_budgets([*budgets, 10], full_cost=5)
    for budget, level in zip([*budgets, 10], clusters.level_of, strict=True):
        assert clusters.ratios[level - 1] * 5 <= budget * (1 + 1e-9)
    assert list(clusters.ratios) == sorted(clusters.ratios)
    assert set(clusters.level_of) == set(range(1, len(clusters.ratios) + 1))


@pytest.mark.parametrize(
    ("budgets", "levels", "message"),
    [
        ([], None, "expected at least one"),
        ([1, -1], None, "all above 0"),
        ([1, 2], None, "no client affords the full model: it costs 5, the largest budget is 2"),
        ([0.5, 4.999], None, "it costs 5, the largest budget is 4.999"),
        ([1, 5], 3, "3 levels: these budgets make 1 to 2"),
        ([1, 5], 1, "1 level: 1 of the budgets do not reach"),
    ],
)
def test_budgets_that_make_no_levels_are_refused(
    budgets: list[float], levels: int | None, message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        cluster_budgets(budgets, full_cost=5, levels=levels)
