"""Paired differences: verdicts that are given, and those that are not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nestfl.comparing.differences import difference


def by_seed(*values: float) -> dict[str | None, float]:
    return {str(seed): value for seed, value in enumerate(values)}


def test_the_interval_of_three_seeds_reaches_from_the_least_to_the_largest_difference() -> None:
    # One of 27 resamples is three times the least: more than the 2.5 % below the interval.
    found = difference(by_seed(0.53, 0.55, 0.54), by_seed(0.50, 0.50, 0.50))
    assert found.mean == pytest.approx(0.04)
    assert [found.low, found.high] == pytest.approx([0.03, 0.05])
    assert found.pairs == 3


def test_differences_that_hardly_vary_are_better_or_worse() -> None:
    # t = 0.04 / (0.01 / sqrt(3)) = 6.93, beyond 4.30
    ours, theirs = by_seed(0.53, 0.55, 0.54), by_seed(0.50, 0.50, 0.50)
    assert difference(ours, theirs).verdict == "better"
    assert difference(theirs, ours).verdict == "worse"


def test_what_is_to_be_low_is_better_where_it_is_lower() -> None:
    less = difference(by_seed(90, 91, 89.5), by_seed(100, 101, 100), lower_is_better=True)
    assert (less.verdict, less.high < 0) == ("better", True)
    more = difference(by_seed(110, 111, 109.5), by_seed(100, 101, 100), lower_is_better=True)
    assert (more.verdict, more.low > 0) == ("worse", True)


def test_three_seeds_of_the_same_sign_are_not_enough_where_they_vary() -> None:
    # t = 0.04 / (0.03606 / sqrt(3)) = 1.92, within 4.30, though the interval is without 0
    found = difference(by_seed(0.51, 0.53, 0.58), by_seed(0.50, 0.50, 0.50))
    assert found.low > 0
    assert found.verdict == "no difference shown"


def test_an_interval_with_0_shows_no_difference() -> None:
    found = difference(by_seed(0.52, 0.49, 0.51), by_seed(0.50, 0.50, 0.50))
    assert found.low < 0 < found.high
    assert found.verdict == "no difference shown"


@pytest.mark.parametrize("seeds", [1, 2])
def test_fewer_than_three_seeds_show_nothing(seeds: int) -> None:
    found = difference(by_seed(*[0.9] * seeds), by_seed(*[0.1] * seeds))
    assert found.verdict == "too few seeds"
    assert found.mean == pytest.approx(0.8)


def test_runs_of_the_same_seed_are_paired() -> None:
    # Unpaired, the seeds' own differences would hide it.
    ours: dict[str | None, float] = {"0": 0.12, "1": 0.52, "2": 0.93, "7": 0.99}
    theirs: dict[str | None, float] = {"2": 0.91, "1": 0.50, "0": 0.10, "5": 0.01}
    found = difference(ours, theirs)
    assert found.pairs == 3
    assert found.mean == pytest.approx(0.02)
    assert found.verdict == "better"


def test_the_same_difference_in_all_seeds_is_one_unless_it_is_0() -> None:
    assert difference(by_seed(0.5, 0.5, 0.5), by_seed(0.25, 0.25, 0.25)).verdict == "better"
    equal = by_seed(0.5, 0.6, 0.7)
    assert difference(equal, equal).verdict == "no difference shown"


def test_runs_without_a_common_seed_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one seed that both have"):
        difference({"0": 0.5}, {"1": 0.5})


@given(st.lists(st.floats(0, 1), min_size=2, max_size=6))
def test_the_interval_is_the_same_every_time_and_holds_the_mean(values: list[float]) -> None:
    first, again = (difference(by_seed(*values), by_seed(*[0.5] * len(values))) for _ in range(2))
    assert first == again
    assert first.low - 1e-12 <= first.mean <= first.high + 1e-12
