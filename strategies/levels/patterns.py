"""Submodels with chosen blocks and widths (NeFL, section 4.1): from patterns, or found for ratios.

A pattern has a group of digits for each stage of a network and a digit for each of its blocks: `11
10` keeps both blocks of the first stage and the first one of the second.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from models.families import family
from models.slicing import Rounding, Slice
from models.task import Task
from strategies.levels.cost import CostKind, cost, price_of
from strategies.levels.planning import Level, PlanError

CutKind = Literal["width", "depth", "both", "prefix"]
"""Parts that submodels lack: channels (NeFL-W), blocks of each stage (NeFL-D), both (NeFL-WD), or
all blocks after a first part (NeFL's version of DepthFL)."""
Kept = tuple[tuple[int, ...], ...]
"""Indices of the blocks kept in each stage."""

WIDTH_STEPS = 200
"""The width search tries multiples of 1/WIDTH_STEPS."""


def read_pattern(pattern: str, model: str) -> Kept:
    """Return the blocks that a pattern keeps, or raise `PlanError` if the model lacks them."""
    stages, groups = family(model).stages, pattern.split()
    if [*map(len, groups)] != [*stages] or set(pattern) - {"0", "1", " "}:
        form = " ".join("1" * blocks for blocks in stages)
        raise PlanError(
            f"pattern {pattern!r}: expected a 0 or 1 for each block of {model}, such as {form!r}"
            if stages
            else f"pattern {pattern!r}: {model} has no blocks that a submodel may lack"
        )
    if "1" not in pattern:
        raise PlanError(f"pattern {pattern!r}: expected a 1, for a network without blocks is none")
    return tuple(
        tuple(block for block, digit in enumerate(group) if digit == "1") for group in groups
    )


def euler_steps(kept: Kept, stages: Sequence[int]) -> list[int]:
    """Return the Euler step of each kept block: 1 plus the blocks skipped right behind it.

    Only skipped blocks of the same stage count, as in Table 12: the next stage has other channels.
    """
    return [
        after - block
        for blocks, count in zip(kept, stages, strict=True)
        for block, after in zip(blocks, [*blocks[1:], count], strict=False)
    ]


def patterned_levels(
    task: Task, kept: Sequence[Kept | None], widths: Sequence[float], rounding: Rounding
) -> list[Level]:
    """Return the levels with these blocks (None: all blocks) and widths, the smallest first."""
    slices = [
        Slice(width=width, blocks=blocks, rounding=rounding)
        for blocks, width in zip(kept, widths, strict=True)
    ]
    return [level_of_slice(task, number, each) for number, each in enumerate(slices, 1)]


def search_patterns(
    task: Task,
    ratios: Sequence[float],
    cut: CutKind,
    tolerance: float,
    kind: CostKind,
    rounding: Rounding,
    at_most: bool = False,
) -> list[Level]:
    """Return levels that cost these shares of the full model, the last of which is 1.

    Without a submodel within the tolerance it is an error; with `at_most`, or a prefix cut, the
    level is the largest submodel that costs less. For cut "both" each stage keeps the square root
    of the ratio of its blocks (section 4.1: gamma_D is gamma_W), rounded, and the width makes up
    the rest.
    """
    if cut != "width" and not family(task.model).stages:
        raise PlanError(
            f"{task.model} has no blocks that a submodel may lack: cut its width, or choose "
            "another model"
        )
    whole = cost(task, task.whole).of(kind)
    levels = []
    for number, ratio in enumerate(ratios, 1):
        target, held = ratio * whole, Slice(rounding=rounding)
        if ratio < 1 and cut == "both":
            held = replace(held, blocks=_balanced(task, ratio, target, kind))
        elif ratio < 1 and cut != "width":
            held = replace(held, blocks=_search_blocks(task, held, target, cut, tolerance, kind))
        if ratio < 1 and cut in ("width", "both"):
            held = _search_width(task, held, target, kind)
        level = level_of_slice(task, number, held)
        excess = level.cost.of(kind) / target - 1
        if excess > tolerance or (excess < -tolerance and not (at_most or cut == "prefix")):
            raise PlanError(
                f"level {number} of {task.model}: no submodel costs {ratio:g} of the full model's "
                f"{whole:,} {kind} within {tolerance:g}; the closest is at {1 + excess:.3f} of the "
                "target"
            )
        levels.append(level)
    return levels


def level_of_slice(task: Task, number: int, held: Slice) -> Level:
    """Return a level that answers with the network's own head, and its own exits if it has any."""
    counted = replace(held, exits=task.whole.exits or (task.units,))
    return Level(number, replace(counted, exits=(task.units,)), counted, cost(task, counted))


def _search_width(task: Task, held: Slice, target: float, kind: CostKind) -> Slice:
    """Return the slice with the width whose cost is closest to the target."""

    def price(step: int) -> int:
        return price_of(task, replace(held, width=step / WIDTH_STEPS), kind)

    # Bisect: the cost rises with the width.
    low, high = 1, WIDTH_STEPS
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if price(middle) <= target else (low, middle)
    closest = min((low, high), key=lambda step: abs(price(step) - target))
    return replace(held, width=closest / WIDTH_STEPS)


def _balanced(task: Task, ratio: float, target: float, kind: CostKind) -> Kept:
    """Return the first blocks of each stage: the square root of the ratio, at least one block.

    The numbers of blocks are rounded up where the rounded ones cost less than the target at full
    width: a width cannot make up for that.
    """
    exact = [math.sqrt(ratio) * blocks for blocks in family(task.model).stages]
    nearest = tuple(tuple(range(max(1, round(count)))) for count in exact)
    if price_of(task, Slice(blocks=nearest), kind) >= target:
        return nearest
    return tuple(tuple(range(math.ceil(count))) for count in exact)


def _search_blocks(
    task: Task, held: Slice, target: float, cut: CutKind, tolerance: float, kind: CostKind
) -> Kept:
    """Return the blocks whose cost is the target, else the largest slice that costs less.

    Among candidates within the tolerance, the best keeps blocks of the most stages, then the most
    similar shares of the stages, then the closest cost. If all cost more, the cheapest is taken.
    """
    stages, least = family(task.model).stages, int(family(task.model).keeps_first)
    prices = _prices(task, held, stages, least, kind)
    found = [
        _Candidate(each, stages, prices.of(each) / target - 1)
        for each in _counts(stages, cut)
        if min(each) >= least
    ]
    fitting = [each for each in found if abs(each.excess) <= tolerance]
    less = [each for each in found if each.excess < 0]
    if fitting:
        best = min(fitting, key=lambda each: each.rank)
    else:
        best = max(less, key=lambda each: each.excess) if less else min(found, key=_excess)
    return tuple(tuple(range(kept)) for kept in best.counts)


@dataclass(frozen=True)
class _Candidate:
    """Numbers of first blocks to keep in each stage, and the relative excess over the target."""

    counts: tuple[int, ...]
    stages: tuple[int, ...]
    excess: float

    @property
    def rank(self) -> tuple[int, float, float]:
        # Rounded below, so that equal values tie in spite of floating-point errors.
        shares = [kept / count for kept, count in zip(self.counts, self.stages, strict=True)]
        empty = self.counts.count(0)
        return (empty, round(max(shares) - min(shares), 9), round(abs(self.excess), 9))


def _excess(candidate: _Candidate) -> float:
    return candidate.excess


@dataclass(frozen=True)
class _Prices:
    """Cost of the whole network, of each stage's first block, and of each of its other blocks."""

    whole: int
    stages: tuple[int, ...]
    first: tuple[int, ...]
    other: tuple[int, ...]

    def of(self, counts: Sequence[int]) -> int:
        """Return the cost of the network with these numbers of blocks in each stage."""
        saved = 0
        for kept, blocks, first, other in zip(
            counts, self.stages, self.first, self.other, strict=True
        ):
            saved += (blocks - kept) * other if kept else (blocks - 1) * other + first
        return self.whole - saved


def _prices(
    task: Task, held: Slice, stages: tuple[int, ...], least: int, kind: CostKind
) -> _Prices:
    """Price blocks as differences of whole costs; the blocks behind a stage's first are alike."""

    def price(stage: int, kept: int) -> int:
        counts = (*stages[:stage], kept, *stages[stage + 1 :])
        blocks = tuple(tuple(range(count)) for count in counts)
        return price_of(task, replace(held, blocks=blocks), kind)

    places = range(len(stages))
    whole = price(0, stages[0])
    ones = [price(stage, 1) for stage in places]
    without = [price(stage, least) for stage in places] if len(stages) > 1 else ones
    others = [whole - price(stage, max(1, stages[stage] - 1)) for stage in places]
    firsts = (one - none for one, none in zip(ones, without, strict=True))
    return _Prices(whole, stages, tuple(firsts), tuple(others))


def _counts(stages: Sequence[int], cut: CutKind) -> Iterator[tuple[int, ...]]:
    """Yield the possible numbers of first blocks in each stage; at least one block is kept."""
    if cut != "prefix":
        yield from (each for each in product(*(range(n + 1) for n in stages)) if any(each))
        return
    before = [sum(stages[:stage]) for stage in range(len(stages))]
    for kept in range(1, sum(stages) + 1):
        yield tuple(min(n, max(0, kept - b)) for n, b in zip(stages, before, strict=True))


def width_of(gamma: float) -> float:
    """Return the share of the channels that keeps a share `gamma` of the parameters."""
    return math.sqrt(gamma)
