"""Bounds on the distance of a reply from its slice, with numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from models import Window, slice_map
from strategies.aggregation.update import RefusedUpdateError, Update, UpdateBounds

FULL = nn.Linear(4, 4)
HALF = slice_map(FULL, nn.Linear(4, 2), Window("rolling", 3))  # rows 3 and 0


def state(value: float, rows: int = 4) -> dict[str, Tensor]:
    return {"weight": torch.full((rows, 4), value), "bias": torch.full((rows,), value)}


def changed(value: float) -> dict[str, Tensor]:
    reply = state(0.0, 2)
    reply["weight"][1, 2] = value
    return reply


@pytest.mark.parametrize("value", [9.5, -9.5])
def test_an_entry_may_change_by_so_many_times_the_largest_of_its_tensor(value: float) -> None:
    bounds = UpdateBounds(value=10, norm=1e9)
    bounds.check(
        Update(changed(value), HALF), state(0.0)
    )  # the largest counts as 1 where it is less
    bounds.check(Update(changed(8.9 * value), HALF), state(9.5))  # 94.05 at most, of 95
    with pytest.raises(
        RefusedUpdateError, match=r"an entry of weight changed by 19, more than max"
    ):
        bounds.check(Update(changed(2 * value), HALF), state(0.0))


def test_a_tensor_may_change_by_so_many_times_its_root_mean_square() -> None:
    bounds = UpdateBounds(value=1e9, norm=10)
    bounds.check(Update(changed(28), HALF), state(0.0))  # 28 / sqrt(8) = 9.9
    with pytest.raises(RefusedUpdateError, match=r"weight changed by 10.25.* \(10\)") as refusal:
        bounds.check(Update(changed(29), HALF), state(0.0))
    assert refusal.value.reason == "too-large"
    bounds.check(Update(state(20.5, 2), HALF), state(2.0))  # 18.5 of 2
    with pytest.raises(RefusedUpdateError, match=r"changed by 20.5 .* \(20\)"):
        bounds.check(Update(state(22.5, 2), HALF), state(2.0))


def test_the_largest_of_a_tensor_is_its_largest_magnitude() -> None:
    bounds = UpdateBounds(value=10, norm=1e9)
    with pytest.raises(RefusedUpdateError, match=r"an entry of weight changed by 99.5, .* \(95\)"):
        bounds.check(Update(changed(-90), HALF), state(-9.5) | {"weight": torch.full((4, 4), 9.5)})


def test_an_update_may_be_as_large_as_its_bound() -> None:
    UpdateBounds(value=10, norm=1e9).check(Update(changed(10), HALF), state(0.0))
    whole = slice_map(FULL, FULL)
    UpdateBounds(value=1e9, norm=10).check(Update(state(10.0), whole), state(0.0))
    UpdateBounds(value=1e9, norm=10).check(Update(state(-18.0), whole), state(2.0))


def test_by_default_an_entry_may_change_by_a_million_and_a_tensor_by_a_tenth_of_that() -> None:
    UpdateBounds(norm=1e9).check(Update(changed(1e6), HALF), state(0.0))
    with pytest.raises(RefusedUpdateError, match=r"max_update.value allows \(1e\+06\)"):
        UpdateBounds(norm=1e9).check(Update(changed(1.001e6), HALF), state(0.0))
    UpdateBounds(value=1e9).check(Update(state(0.999e5, 2), HALF), state(0.0))
    with pytest.raises(RefusedUpdateError, match=r"max_update.norm allows \(100000\)"):
        UpdateBounds(value=1e9).check(Update(state(1.001e5, 2), HALF), state(0.0))


def test_a_tensor_without_entries_is_within_all_bounds() -> None:
    empty = nn.Module()
    empty.weight = nn.Parameter(torch.empty(0, 3))
    UpdateBounds().check(Update(empty.state_dict(), slice_map(empty, empty)), empty.state_dict())


def test_an_update_is_measured_against_the_rows_that_were_sent() -> None:
    start = state(0.0)
    start["weight"][1:3] = 1e6  # rows that the slice does not hold
    start["weight"][3] = 7.0
    kept = {"weight": start["weight"][[3, 0]].clone(), "bias": torch.zeros(2)}
    bounds = UpdateBounds(value=1e-3, norm=1e-3)
    bounds.check(Update(kept, HALF), start)
    with pytest.raises(RefusedUpdateError, match=r"an entry of weight changed by 7, .* allows"):
        bounds.check(Update({**kept, "weight": kept["weight"].flip(0)}, HALF), start)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_refused_as_that(bad: float) -> None:
    with pytest.raises(RefusedUpdateError, match="non-finite: weight"):
        UpdateBounds().check(Update(changed(bad), HALF), state(0.0))


def test_entries_that_were_no_numbers_before_may_become_some() -> None:
    UpdateBounds().check(Update(changed(3.0), HALF), state(float("nan")))
    with pytest.raises(RefusedUpdateError, match="too-large"):
        UpdateBounds().check(Update(changed(1e9), HALF), state(float("nan")))
    with pytest.raises(RefusedUpdateError, match=r"an entry of weight changed by 10.5,"):
        UpdateBounds(value=10).check(Update(changed(10.5), HALF), state(float("nan")))  # it was 0


def test_other_names_and_shapes_are_refused_as_the_mean_does() -> None:
    with pytest.raises(RefusedUpdateError, match=r"missing \['bias'\]"):
        UpdateBounds().check(Update({"weight": torch.zeros(2, 4)}, HALF), state(0.0))
    with pytest.raises(RefusedUpdateError, match=r"weight is \(4, 4\), expected \(2, 4\)"):
        UpdateBounds().check(Update(state(0.0), HALF), state(0.0))


def test_honest_statistics_of_raw_inputs_are_taken() -> None:
    norm = nn.BatchNorm1d(3)
    reply = {**norm.state_dict(), "running_var": torch.full((3,), 5e4)}
    UpdateBounds().check(Update(reply, slice_map(norm, norm)), norm.state_dict())


def test_a_bound_that_is_no_positive_number_is_an_error() -> None:
    for wrong in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match=f"norm is {wrong}: expected a number above 0"):
            UpdateBounds(norm=wrong)
