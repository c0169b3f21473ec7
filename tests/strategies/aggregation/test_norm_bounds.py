"""Updates that go too far are refused or shortened, with numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from models import SliceMap, Window, slice_map
from strategies.aggregation.nested_mean import NestedMean
from strategies.aggregation.norm_bounds import Inner, NormBound, Norms, clipped
from strategies.aggregation.trimmed_mean import Median
from strategies.aggregation.update import RefusedUpdateError, Update
from tests.support.toy_networks import same

FULL = nn.Linear(4, 4, bias=False)
START = {"weight": torch.full((4, 4), 2.0)}
NARROW = slice_map(FULL, nn.Linear(2, 2, bias=False))  # norm 4 of its four twos
WIDE = slice_map(FULL, FULL)  # norm 8 of its sixteen


def moved(mapping: SliceMap, by: float, level: int = 1, weight: float = 1.0) -> Update:
    """Return an update of which each entry went `by` from the start."""
    region = mapping.regions["weight"]
    state = {"weight": torch.full(region.shape, 2.0 + by)}
    return Update(state, mapping, weight, level=level, start=START)


def folded(aggregator: Inner, *updates: Update) -> Tensor:
    for update in updates:
        aggregator.add(update)
    return aggregator.result(START)["weight"]


# --- norms -------------------------------------------------------------------------------------


def test_norms_are_of_what_the_slice_holds() -> None:
    assert Norms.of(moved(NARROW, 1.5)) == Norms(change=3.0, slice=4.0)
    assert Norms.of(moved(WIDE, -1.5)) == Norms(change=6.0, slice=8.0)


def test_all_parameters_count_together_and_statistics_and_integers_do_not() -> None:
    full = nn.BatchNorm1d(4)
    start = {name: torch.full_like(tensor, 3) for name, tensor in full.state_dict().items()}
    state = {
        **{"weight": torch.full((4,), 4.0), "bias": torch.full((4,), 5.0)},
        **{"running_mean": torch.full((4,), 1e6), "running_var": torch.full((4,), 1e6)},
        "num_batches_tracked": torch.tensor(10**6),
    }
    norms = Norms.of(Update(state, slice_map(full, full), start=start))
    assert norms.change == pytest.approx((4 * 1 + 4 * 4) ** 0.5)
    assert norms.slice == pytest.approx(72**0.5)


def test_a_window_is_measured_against_its_own_rows() -> None:
    start = {"weight": torch.arange(16.0).view(4, 4)}
    rolled = slice_map(FULL, nn.Linear(4, 2, bias=False), Window("rolling", 3))
    kept = Update({"weight": start["weight"][[3, 0]]}, rolled, start=start)
    assert Norms.of(kept).change == 0


# --- refusal -----------------------------------------------------------------------------------


def test_a_level_may_move_by_so_many_times_its_slice() -> None:
    bound = NormBound(times=0.5)
    bound.add(moved(NARROW, 1.0))  # norm 2 of 4
    bound.add(moved(WIDE, 1.0, 2))  # norm 4 of 8: more than the narrow one may
    with pytest.raises(RefusedUpdateError) as refusal:
        bound.add(moved(NARROW, 1.25, 1))
    assert refusal.value.reason == "norm-bound"
    assert (
        str(refusal.value) == "norm-bound: the update's norm is 2.5, above the bound of level 1 (2)"
    )
    assert torch.equal(bound.result(START)["weight"], torch.full((4, 4), 3.0))


def test_levels_may_have_bounds_of_their_own() -> None:
    bound = NormBound(bounds=[1.0, 8.0])
    bound.add(moved(WIDE, 2.0, 2))  # norm 8
    bound.add(moved(NARROW, 0.5, 1))  # norm 1
    with pytest.raises(RefusedUpdateError, match=r"norm is 1.5, above the bound of level 1 \(1\)"):
        bound.check(moved(NARROW, 0.75, 1))
    with pytest.raises(RefusedUpdateError, match=r"norm is 8.4, above the bound of level 2 \(8\)"):
        bound.add(moved(WIDE, 2.1, 2))


def test_what_the_inner_one_refuses_is_refused_for_its_own_reason() -> None:
    for aggregator in (NormBound(), clipped(), clipped(of="median"), NormBound(inner=Median())):
        for bad, reason in (
            (replace(moved(WIDE, 0.5), state={}), "names"),
            (moved(WIDE, float("nan")), "non-finite"),
        ):
            for refuses in (aggregator.check, aggregator.add):
                with pytest.raises(RefusedUpdateError) as refusal:
                    refuses(bad)
                assert refusal.value.reason == reason
        assert torch.equal(aggregator.result(START)["weight"], START["weight"])
    with pytest.raises(RefusedUpdateError, match="weight: weight 0"):
        clipped(of="median").add(moved(WIDE, 0.5, weight=0))  # and not when the round ends


# --- clipping ----------------------------------------------------------------------------------


def test_an_update_is_shortened_to_its_bound() -> None:
    after = folded(clipped(times=0.5), moved(NARROW, 4.0))  # norm 8, and may have 2
    assert after[:2, :2].tolist() == [[3.0, 3.0], [3.0, 3.0]]
    assert torch.equal(after[2:], START["weight"][2:])
    assert folded(clipped(bounds=[4.0]), moved(NARROW, 4.0))[0, 0] == 4.0


def test_what_is_within_the_bound_is_not_touched() -> None:
    after = folded(clipped(times=0.5), moved(WIDE, 1.0), moved(WIDE, -0.5))
    assert torch.equal(after, torch.full((4, 4), 2.25))


def test_statistics_go_back_by_the_same_share_and_integers_stay() -> None:
    full = nn.BatchNorm1d(4)
    start = {name: torch.ones_like(tensor) for name, tensor in full.state_dict().items()}
    state = {name: torch.full_like(tensor, 9) for name, tensor in start.items()}
    aggregator = clipped(times=1.0)  # norm sqrt(8), of 8 sqrt(8)
    aggregator.add(Update(state, slice_map(full, full), start=start))
    after = aggregator.result(start)
    floats = torch.cat([tensor for tensor in after.values() if tensor.ndim])
    torch.testing.assert_close(floats, torch.full((16,), 2.0))
    assert after["num_batches_tracked"] == 9


def test_what_was_no_number_began_at_zero() -> None:
    start = {"weight": torch.full((4, 4), float("nan"))}
    start["weight"][0] = 1.0  # norm 2
    update = replace(moved(WIDE, 2.0), start=start)  # 4 everywhere: norm sqrt(4 * 9 + 12 * 16)
    aggregator = clipped(times=1.0)
    aggregator.add(update)
    after, share = aggregator.result(start)["weight"], 2 / 228**0.5
    torch.testing.assert_close(after[0], torch.full((4,), 1 + 3 * share))
    torch.testing.assert_close(after[1:], torch.full((3, 4), 4 * share))


def test_the_bound_may_be_the_median_of_the_level() -> None:
    updates = [moved(WIDE, by, 2) for by in (0.5, 1.0, 100.0)]  # norms 2, 4, 400
    other = [moved(NARROW, 50.0, 1)] * 3  # of another level, so they are no measure of these
    after = folded(clipped(of="median"), *updates, *other)
    assert after[3, 3] == pytest.approx(2 + (0.5 + 1 + 1) / 3)
    assert after[0, 0] == pytest.approx(2 + (0.5 + 1 + 1 + 150) / 6)
    twice = folded(clipped(times=2.0, of="median"), *updates)
    assert twice[3, 3] == pytest.approx(2 + (0.5 + 1 + 2) / 3)


def test_a_level_with_fewer_than_three_replies_is_compared_with_all_levels() -> None:
    updates = [moved(WIDE, by, 2) for by in (0.5, 1.0, 1.5)]  # 0.25, 0.5 and 0.75 of the slice
    lone = [moved(NARROW, 100.0, 1)]  # 50 times its slice, of which 0.5 is the lower middle of all
    after = folded(clipped(of="median"), *updates, *lone)
    assert after[3, 3] == pytest.approx(2 + (0.5 + 1 + 1) / 3)
    assert after[0, 0] == pytest.approx(2 + (0.5 + 1 + 1 + 1) / 4)
    two = [moved(NARROW, 100.0, 1), moved(NARROW, 1.0, 1)]  # the median of all is 0.5
    assert folded(clipped(of="median"), *updates, *two)[0, 0] == pytest.approx(2 + 4.5 / 5)


def test_two_liars_of_four_are_held_to_what_the_others_do() -> None:
    updates = [moved(WIDE, by) for by in (0.5, 1.0, 100.0, 200.0)]
    assert folded(clipped(of="median"), *updates)[0, 0] == pytest.approx(2 + (0.5 + 3 * 1) / 4)


def test_a_result_can_be_asked_for_again() -> None:
    aggregator = clipped(of="median")
    first = folded(aggregator, *(moved(WIDE, by) for by in (0.5, 1.0, 9.0)))
    assert torch.equal(first, aggregator.result(START)["weight"])


def test_shortened_updates_may_go_to_another_aggregator_than_the_mean() -> None:
    updates = [moved(WIDE, by) for by in (0.25, 0.5, 100.0)]
    assert folded(clipped(inner=Median()), *updates)[0, 0] == 2.5
    around = clipped(of="median", inner=NormBound(bounds=[1.5], inner=Median()))
    with pytest.raises(RefusedUpdateError, match="norm-bound"):
        around.add(moved(WIDE, 9.0))


bys = st.lists(
    st.tuples(st.floats(-50, 50, width=32), st.booleans(), st.integers(1, 9)),
    min_size=1,
    max_size=6,
)


@settings(max_examples=50, deadline=None)
@given(found=bys)
def test_clipping_beyond_all_updates_is_the_nested_mean_bit_for_bit(
    found: list[tuple[float, bool, int]],
) -> None:
    # None is still: a median norm of 0 would clip every update to nothing.
    found = [(by + 1 if by >= 0 else by - 1, wide, weight) for by, wide, weight in found]
    updates = [moved(WIDE if wide else NARROW, by, 1 + wide, weight) for by, wide, weight in found]
    plain = folded(NestedMean(), *updates)
    for aggregator in (
        clipped(times=1e9),
        clipped(times=1e9, of="median"),
        NormBound(times=1e9),
    ):
        assert same({"w": folded(aggregator, *updates)}, {"w": plain})


@settings(max_examples=50, deadline=None)
@given(found=bys, shuffled=st.randoms(), median=st.booleans())
def test_the_order_of_replies_changes_no_bit_and_no_update_goes_beyond_its_bound(
    found: list[tuple[float, bool, int]], shuffled: object, median: bool
) -> None:
    updates = [moved(WIDE if wide else NARROW, by, 1 + wide) for by, wide, _ in found]
    other = list(updates)
    shuffled.shuffle(other)  # type: ignore[attr-defined]
    one, two = (
        folded(clipped(0.5, "median" if median else "slice"), *order) for order in (updates, other)
    )
    assert torch.equal(one, two)
    if not median:
        assert float((one - START["weight"]).norm()) <= 0.5 * 8 * (1 + 1e-6)
