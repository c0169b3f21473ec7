"""Plans the slice of each level: ScaleFL's split search (Eq. 1), depths, levels from budgets."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from data.cache import Arrays
from models.slicing import Rounding, Slice
from models.task import Task
from strategies.levels.cost import NORMABLE, Cost, CostKind, cost, path_costs
from strategies.levels.plan_cache import kept


class PlanError(ValueError):
    """A plan that cannot be made as asked."""


@dataclass(frozen=True)
class Split:
    """A level's pair in Eq. (1): the unit that its exit follows, and its share of the width."""

    depth: int
    width: float


@dataclass(frozen=True)
class Level:
    """A slice with its level number in reports and its cost. It may be any slice."""

    number: int
    slice: Slice
    counted: Slice
    """The slice that the cost is of. At full depth it also has the network's own exits; the last
    level counts only these, as the papers' tables do: it is the network as published."""
    cost: Cost

    @property
    def split(self) -> Split:
        """The level's pair in Eq. (1), for a level that was planned."""
        assert self.slice.exits is not None
        assert isinstance(self.slice.width, float | int)
        return Split(self.slice.exits[-1], self.slice.width)


@dataclass(frozen=True)
class SearchGrid:
    """Points of the search: each unit, or `depth_steps` equal steps of depth; steps of width."""

    depth_steps: int | None = None
    width_step: float = 0.05

    def __post_init__(self) -> None:
        if self.depth_steps is not None and self.depth_steps < 1:
            raise PlanError(f"depth grid {self.depth_steps}: expected at least 1 step")
        if not 0 < self.width_step <= 1:
            raise PlanError(f"width step {self.width_step}: expected 0 < step <= 1")

    def depths(self, units: int) -> list[int]:
        steps = self.depth_steps or units
        return sorted({units * step // steps for step in range(1, steps + 1)} - {0})

    def widths(self) -> list[float]:
        """Return the widths, from 1 down."""
        # The small term keeps 1 / 0.05 from being floored to 19.
        steps = math.floor(1 / self.width_step + 1e-9)
        return [round(self.width_step * step, 9) for step in range(steps, 0, -1)]


def halving_ratios(levels: int) -> list[float]:
    """Return the papers' rule of thumb: each level costs half of the next."""
    if levels < 1:
        raise PlanError(f"{levels} levels: expected at least 1")
    return [0.5 ** (levels - level) for level in range(1, levels + 1)]


def search_splits(
    task: Task,
    ratios: Sequence[float],
    tolerance: float = 0.1,
    kind: CostKind = "parameters",
    grid: SearchGrid = SearchGrid(),  # noqa: B008  (frozen)
    rounding: Rounding = "floor",
) -> list[Split]:
    """Search Eq. (1) for each level: the pair with the least |depth - width| within the tolerance.

    A level is deeper than the one below it, or, where no such pair is within the tolerance, as deep
    and wider. Its cost counts the exits of the levels below it, which lie on its path, and at full
    depth the network's own exits. Ties go to the pair whose cost is closest to the target, then to
    the deeper one. The last level is the whole network. The result is cached on disk.
    """

    def search() -> Arrays:
        found = _searched(task, ratios, tolerance, kind, grid, rounding)
        depths, widths = zip(*((split.depth, split.width) for split in found), strict=True)
        return {"depths": np.array(depths), "widths": np.array(widths, np.float64)}

    asked = (tuple(ratios), tolerance, kind, grid, rounding)
    splits = kept("plan", task, asked, search)
    pairs = zip(splits["depths"].tolist(), splits["widths"].tolist(), strict=True)
    return [Split(depth, width) for depth, width in pairs]


def _searched(
    task: Task,
    ratios: Sequence[float],
    tolerance: float,
    kind: CostKind,
    grid: SearchGrid,
    rounding: Rounding,
) -> list[Split]:
    _check_ratios(ratios)
    whole = cost(task, task.whole, batch=NORMABLE).of(kind)
    splits: list[Split] = []
    for level, ratio in enumerate(ratios[:-1], 1):
        found = _search_level(task, splits, ratio * whole, tolerance, kind, grid, rounding)
        feasible = [candidate for candidate in found if abs(candidate.excess) <= tolerance]
        if not feasible:
            closest = min(found, key=lambda candidate: abs(candidate.excess), default=None)
            raise PlanError(
                f"level {level} of {task.model}: no split costs {ratio:g} of the full model's "
                f"{whole:,} {kind} within {tolerance:g}; "
                + (f"the closest is {closest}" if closest else "the level below is whole")
                + f"; give other ratios or splits, or a tolerance of more than {tolerance:g}"
            )
        deeper = [each for each in feasible if not splits or each.split.depth > splits[-1].depth]
        best = min(deeper or feasible, key=lambda candidate: candidate.rank)
        splits.append(best.split)
    return [*splits, Split(task.units, 1.0)]


@dataclass(frozen=True)
class _Candidate:
    split: Split
    units: int
    excess: float
    """Cost over target, minus 1."""

    @property
    def rank(self) -> tuple[float, float, int]:
        # Rounded, so that equal values tie in spite of floating-point errors.
        imbalance = abs(self.split.depth / self.units - self.split.width)
        return (round(imbalance, 9), round(abs(self.excess), 9), -self.split.depth)

    def __str__(self) -> str:
        split = self.split
        return f"depth {split.depth}, width {split.width:g} at {1 + self.excess:.3f} of the target"


def _search_level(
    task: Task,
    below: Sequence[Split],
    target: float,
    tolerance: float,
    kind: CostKind,
    grid: SearchGrid,
    rounding: Rounding,
) -> list[_Candidate]:
    """Return all pairs above the level below, down to the width at which all cost too little."""
    depths = grid.depths(task.units)
    # One pass per width prices every depth: the cost up to any exit follows from its sections.
    everywhere = tuple(sorted({*depths, *_own_exits(task)}))
    lowest = below[-1] if below else Split(0, 1.0)
    found: list[_Candidate] = []
    for width in grid.widths():
        costs = path_costs(task, Slice(width, exits=everywhere, rounding=rounding), kind)
        at_width = []
        for depth in depths:
            if depth > lowest.depth or (depth == lowest.depth and width > lowest.width):
                exits = _counted_exits(task, {*(split.depth for split in below), depth})
                excess = costs.of(exits).of(kind) / target - 1
                at_width.append(_Candidate(Split(depth, width), task.units, excess))
        found += at_width
        if all(candidate.excess < -tolerance for candidate in at_width):
            break
    return found


def search_depths(
    task: Task, ratios: Sequence[float], tolerance: float = 0.1, kind: CostKind = "parameters"
) -> list[Split]:
    """Return for each level the deepest split of full width that costs its target at most.

    It may exceed the target by the tolerance. Its cost counts the exits of the levels below it,
    which lie on its path, and at full depth the network's own exits. A level is deeper than the one
    below it, or as deep where no deeper one is cheap enough. The last level is the whole network.
    """
    _check_ratios(ratios)
    whole = cost(task, task.whole, batch=NORMABLE).of(kind)
    costs = path_costs(task, Slice(exits=tuple(range(1, task.units + 1))), kind)
    depths: list[int] = []
    for ratio in ratios[:-1]:
        target, lowest = ratio * whole, depths[-1] if depths else 0
        found = {
            depth: costs.of(_counted_exits(task, {*depths, depth})).of(kind) / target - 1
            for depth in range(lowest + 1, task.units + 1)
        }
        affordable = [depth for depth, excess in found.items() if round(excess, 9) <= tolerance]
        if not affordable and not depths:
            closest = min(found, key=lambda depth: found[depth])
            raise PlanError(
                f"level 1 of {task.model}: no depth costs {ratio:g} of the full model's {whole:,} "
                f"{kind} at most, within {tolerance:g}; the closest is depth {closest} at "
                f"{1 + found[closest]:.3f} of the target"
            )
        depths.append(max(affordable, default=lowest))
    return [*(Split(depth, 1.0) for depth in depths), Split(task.units, 1.0)]


def levels_of(task: Task, splits: Sequence[Split], rounding: Rounding = "floor") -> list[Level]:
    """Return the levels of these splits; each holds the exits of lower levels on its path."""
    if not splits:
        raise PlanError("no splits: expected one for each level")
    for split in splits:
        if not 1 <= split.depth <= task.units:
            raise PlanError(f"depth {split.depth}: {task.model} has units 1 to {task.units}")
    levels = []
    for number, split in enumerate(splits, 1):
        path = {lower.depth for lower in splits[:number] if lower.depth <= split.depth}
        held = Slice(width=split.width, exits=tuple(sorted(path)), rounding=rounding)
        whole = number == len(splits) and split.depth == task.units
        counted = _own_exits(task) if whole else _counted_exits(task, path)
        levels.append(_level(task, number, held, counted))
    return levels


def own_exit_only(task: Task, level: Level) -> Level:
    """Return the level without the exits below its own, for methods that do not train them."""
    own = (level.split.depth,)
    held = replace(level.slice, exits=own)
    return _level(task, level.number, held, _counted_exits(task, own))


def _level(task: Task, number: int, held: Slice, exits: tuple[int, ...]) -> Level:
    counted = replace(held, exits=exits)
    return Level(number, held, counted, cost(task, counted))


def _counted_exits(task: Task, path: Collection[int]) -> tuple[int, ...]:
    """Return the exits that a level's cost counts: its path, at full depth the network's too."""
    whole = max(path) == task.units
    return tuple(sorted({*path, *_own_exits(task)} if whole else path))


def _own_exits(task: Task) -> tuple[int, ...]:
    return task.whole.exits or (task.units,)


def _check_ratios(ratios: Sequence[float]) -> None:
    if not ratios or list(ratios) != sorted(ratios) or ratios[0] <= 0 or ratios[-1] != 1:
        raise PlanError(
            f"ratios {list(ratios)}: expected to rise from above 0 to 1, the full model"
        )


# --- budgets ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Clusters:
    """Budgets sorted into levels (Task 1): each client's level, and each level's target ratio."""

    level_of: tuple[int, ...]
    ratios: tuple[float, ...]


def cluster_budgets(
    budgets: Sequence[float], full_cost: float, levels: int | None = None
) -> Clusters:
    """Sort budgets into levels: the full model's, and clusters of the others by log budget.

    A level's ratio is its smallest budget over the full model's cost, so that all its clients
    afford it. Without `levels`, the number of clusters is the one that separates the budgets best
    (silhouette).
    """
    if not budgets or min(budgets) <= 0:
        raise PlanError(f"budgets {list(budgets)}: expected at least one, all above 0")
    if max(budgets) < full_cost:
        raise PlanError(
            f"no client affords the full model: it costs {full_cost:,.4g}, the largest budget is "
            f"{max(budgets):,.4g}; what no client holds is never trained, so plan a smaller model"
        )
    limited = sorted({budget for budget in budgets if budget < full_cost})
    logs = np.log([[budget] for budget in limited])
    if levels is not None and not 1 <= levels <= len(limited) + 1:
        raise PlanError(f"{levels} levels: these budgets make 1 to {len(limited) + 1}")
    if levels == 1 and limited:
        raise PlanError(
            f"1 level: {len(limited)} of the budgets do not reach the full model's cost"
        )
    labels = _cluster(logs, levels - 1 if levels is not None else None)
    groups: dict[int, list[float]] = {}
    for budget, label in zip(limited, labels, strict=True):
        groups.setdefault(label, []).append(budget)
    floors = sorted(min(group) for group in groups.values())
    level_of = tuple(
        len(floors) + 1 if budget >= full_cost else sum(floor <= budget for floor in floors)
        for budget in budgets
    )
    return Clusters(level_of, (*(floor / full_cost for floor in floors), 1.0))


def _cluster(logs: np.ndarray, clusters: int | None) -> list[int]:
    """Return k-means labels; in one dimension the floors of clusters separate them."""
    from sklearn.cluster import KMeans
    from sklearn.metrics import silhouette_score

    def fit(k: int) -> list[int]:
        labels: list[int] = KMeans(k, n_init=10, random_state=0).fit_predict(logs).tolist()
        return labels

    if len(logs) <= 2 or clusters is not None:
        count = min(len(logs), clusters if clusters is not None else len(logs))
        return fit(count) if count else []
    candidates = [fit(k) for k in range(2, min(len(logs), 8))]
    return max(candidates, key=lambda labels: float(silhouette_score(logs, labels)))
