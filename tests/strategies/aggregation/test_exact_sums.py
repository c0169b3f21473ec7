"""Sums in digits of 30 bits, with numbers worked out by hand: rows, carries, rounding, loops."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from models import Region
from strategies.aggregation import exact_sums
from strategies.aggregation.exact_sums import ExactSums, digits_of, peak, quotient

ONE = Region("w", (1,), (slice(0, 1),), (1,), torch.float64)
MIDDLE = Region("w", (3, 4), (slice(1, 3), slice(1, 3)), (2, 2), torch.float64)
"""Two runs of two entries, which start at 5 and 9 of 12."""


def number(value: float) -> Tensor:
    return torch.tensor([value], dtype=torch.float64)


def exact(sums: ExactSums) -> list[Fraction]:
    """Return the sums as they are, from the definition of the rows."""
    return [
        sum((int(digit) * Fraction(2) ** (30 * (sums.lowest + power)) for power, digit in rows),
            Fraction(0))
        for rows in (enumerate(column) for column in sums.rows.T)
    ]  # fmt: skip


def of_rows(*rows: int, lowest: int = 0) -> ExactSums:
    sums = ExactSums(1)
    sums.rows, sums.lowest = np.array([[row] for row in rows], np.int64), lowest
    return sums


def test_digits_are_those_of_base_2_to_the_30() -> None:
    assert digits_of(0, 0) == {}
    assert digits_of(5, -2) == {-2: 5}
    assert digits_of(2**30, -2) == {-1: 1}
    assert digits_of(3 * 2**60 + 2**30 - 1, -2) == {-2: 2**30 - 1, 0: 3}


@pytest.mark.parametrize("weight", [{0: 1}, {0: 3}, {-2: 5}, {-1: 7, 1: 2}, {-2: 2**30 - 1, 0: 1}])
def test_values_are_added_to_the_entries_of_their_region(weight: dict[int, int]) -> None:
    sums, times = ExactSums.of(MIDDLE), sum(d * Fraction(2) ** (30 * p) for p, d in weight.items())
    added = [[1.0, -2.0], [2.0**45 + 3, -(2.0**52)]]
    for _ in range(3):
        sums.add(MIDDLE, torch.tensor(added, dtype=torch.float64), 1.0, weight)
    expected = [0, 0, 0, 0, 0, 1, -2, 0, 0, 2**45 + 3, -(2**52), 0]
    assert exact(sums) == [3 * value * times for value in expected]
    assert sums.numbers().tolist() == [float(3 * value * times) for value in expected]


def test_weights_are_added_to_the_entries_of_their_region() -> None:
    sums = ExactSums.of(MIDDLE)
    sums.add_weight(MIDDLE, {0: 3})
    sums.add_weight(MIDDLE, {-1: 2**29, 1: 1})
    each = 3 + Fraction(1, 2) + 2**30
    assert exact(sums) == [each if place in (5, 6, 9, 10) else 0 for place in range(12)]
    assert sums.lowest == -1


def test_nothing_is_added_of_an_empty_tensor() -> None:
    sums = ExactSums(0)
    sums.add(Region("w", (0,), (slice(0, 0),), (0,), torch.float64), torch.empty(0), 1.0, {0: 1})
    assert sums.rows.shape == (1, 0)
    assert peak(torch.empty(0)) == 0


@pytest.mark.parametrize(("weight", "times"), [({0: 1}, 1), ({0: 3}, 3)])
def test_halves_are_rounded_to_even_whatever_the_weight(weight: dict[int, int], times: int) -> None:
    region = Region("w", (5,), (slice(0, 5),), (5,), torch.float64)
    sums = ExactSums.of(region)
    halves = torch.tensor([1.0, 3.0, 5.0, -1.0, -3.0], dtype=torch.float64)
    sums.add(region, halves, 0.5, weight)
    assert exact(sums) == [times * value for value in (0, 2, 2, 0, -2)]


@pytest.mark.parametrize(
    ("value", "digit", "rows"),
    [
        (2.0**50, 1, 1),  # the most that is added in one go
        (2.0**50 + 1, 1, 2),
        (1.0, 2, 1),
        (2.0**31, 2, 1),  # 2^32, the most that a number may add to the highest row
        (2.0**31 + 1, 2, 2),
        (2.0**61, 2, 2),  # 30 bits more
        (2.0**61 + 2**51, 2, 3),
    ],
)
def test_a_number_takes_the_rows_that_it_needs(value: float, digit: int, rows: int) -> None:
    sums = ExactSums(1)
    sums.add(ONE, number(value), 1.0, {0: digit})
    assert len(sums.rows) == rows
    sums.add(ONE, number(-value), 1.0, {0: digit})
    assert len(sums.rows) == rows
    assert exact(sums) == [0]


def test_a_row_is_carried_before_it_can_overflow() -> None:
    sums = ExactSums(1)

    def add(times: int) -> None:
        for _ in range(times):
            sums.add(ONE, number(2.0**50), 1.0, {0: 1})

    add(2047)
    assert sums.rows.tolist() == [[2047 * 2**50]]
    add(1)
    assert sums.rows.tolist() == [[0], [2**31]]
    add(2047)
    assert sums.rows.tolist() == [[2047 * 2**50], [2**31]]
    add(1)
    assert sums.rows.tolist() == [[0], [2**32]]
    add(1)
    assert sums.numbers().tolist() == [2.0**62 + 2.0**50]  # which carries, too
    add(2047)
    assert sums.rows[0].tolist() == [2047 * 2**50]
    add(1)
    assert sums.rows[0].tolist() == [0]


def test_restored_sums_are_the_same_and_have_room_again() -> None:
    restored = ExactSums.restored(**of_rows(7, 2**40 + 5, lowest=-1).state_dict())
    assert restored.lowest == -1
    assert restored.rows.tolist() == [[7], [5], [2**10]]


@pytest.mark.parametrize(
    ("rows", "lowest", "value"),
    [
        ((3,), 0, 3),
        ((-3,), 0, -3),
        ((5, 2), 0, 5 + 2 * 2**30),
        ((-5, 2), 0, -5 + 2 * 2**30),
        ((5, -2), 0, 5 - 2 * 2**30),
        ((0, 0, -1), 0, -(2**60)),
        ((1, 0, -1), -2, Fraction(1, 2**60) - 1),
        ((2**40, 1), -1, Fraction(2**40, 2**30) + 1),
        ((0, 5, 2**24, 0), 0, (2**54 + 5) * 2**30),  # which a double has to round
    ],
)
def test_rows_are_joined_to_the_nearest_double(
    rows: tuple[int, ...], lowest: int, value: Fraction
) -> None:
    assert of_rows(*rows, lowest=lowest).numbers().tolist() == [float(value)]


@pytest.mark.parametrize(
    ("total", "count", "before", "tolerance", "mean"),
    [
        (7, 2, 1.0, 0.0, 3.5),
        (7, 1, 1.0, 0.0, 7.0),
        (7, 0, 1.0, 0.0, 1.0),  # nobody held it
        (3, 4, 0.0, 0.75, 0.0),  # within the tolerance, which is none
        (4, 4, 0.0, 0.75, 1.0),
        (2**60 + 2**9, 1, 2.0**60, 0.75, 2.0**60),  # 2^-51 of it
        (2**60 + 2**10, 1, 2.0**60, 0.75, 2.0**60 + 2**10),
        (-7, 2, 3.5, 0.0, -3.5),
    ],
)
def test_a_quotient_is_the_mean_or_what_was_there(
    total: int, count: int, before: float, tolerance: float, mean: float
) -> None:
    found = quotient(of_rows(total), of_rows(count), 1.0, number(before), tolerance)
    assert found.tolist() == [mean]


# --- one thread, and several -------------------------------------------------------------------


@pytest.mark.parametrize("count", [2**17 - 1, 2**17])
def test_several_threads_are_used_from_2_to_the_17_values_on(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[bool] = []
    monkeypatch.setattr(exact_sums, "_run", lambda loop, parallel, *_: used.append(parallel))
    region = Region("w", (count,), (slice(0, count),), (count,), torch.float32)
    sums = ExactSums.of(region)
    for weight in ({0: 1}, {0: 2}):
        sums.add(region, torch.zeros(count), 1.0, weight)
    quotient(sums, sums, 1.0, torch.zeros(count), 0.0)
    assert used == [count == 2**17] * 3


@pytest.mark.parametrize(
    ("loops", "arguments"),
    [
        (exact_sums._QUICK, (np.zeros(12, np.int64), *MIDDLE.runs, np.arange(1.0, 5), 1.0)),
        (exact_sums._WIDE, (np.zeros((2, 12), np.int64), *MIDDLE.runs, np.arange(1.0, 5), 2.0, 3)),
        (exact_sums._DIVIDE, (np.arange(3.0), np.ones(3), 2.0, np.ones(3), 0.1, np.zeros(3))),
    ],
)
def test_the_loops_for_several_threads_do_what_those_for_one_do(
    loops: tuple[Callable[..., Any], ...], arguments: tuple[Any, ...]
) -> None:
    results = []
    for loop in loops:
        given = [each.copy() if isinstance(each, np.ndarray) else each for each in arguments]
        getattr(loop, "py_func", loop)(*given)  # as it is written: compiling takes seconds
        results.append([each for each in given if isinstance(each, np.ndarray)])
    for one, several in zip(*results, strict=True):
        assert one.tolist() == several.tolist()
    assert any(one.any() for one in (results[0][0], results[0][-1]))


def test_a_loop_for_several_threads_leaves_torch_its_own_number() -> None:
    before = torch.get_num_threads()
    try:
        exact_sums._run(lambda: torch.set_num_threads(before + 1), True)
        assert torch.get_num_threads() == before
        exact_sums._run(lambda: torch.set_num_threads(before + 1), False)
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)
