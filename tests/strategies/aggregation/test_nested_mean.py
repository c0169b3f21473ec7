"""The nested mean, with numbers worked out by hand and properties that hold for any."""

from __future__ import annotations

import itertools
import subprocess
import sys
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor, nn

from models import Slice, SliceMap, Window, build, extract, slice_map
from strategies.aggregation.nested_mean import NestedMean
from strategies.aggregation.update import RefusedUpdateError, Update
from tests.models.test_slicing import windows

FULL = nn.Linear(4, 4)


def part(rows: int, columns: int = 4, window: Window = Window()) -> SliceMap:  # noqa: B008
    return slice_map(FULL, nn.Linear(columns, rows), window)


def reply(mapping: SliceMap, value: float) -> dict[str, Tensor]:
    return {
        name: torch.full(region.shape, float(value)) for name, region in mapping.regions.items()
    }


def filled(value: float) -> dict[str, Tensor]:
    return {"weight": torch.full((4, 4), float(value)), "bias": torch.full((4,), float(value))}


def test_nefls_worked_example() -> None:
    """Section 4.2: submodels 1, 3, 5 hold the layer; trained 2, 3, 2 times: 7, 5, 2 weights."""
    one, three, five = part(1, 1), part(2, 2), part(4, 4)
    mean = NestedMean()
    for mapping, values in ((one, (1, 2)), (three, (3, 4, 5)), (five, (6, 7))):
        for value in values:
            mean.add(Update(reply(mapping, value), mapping))
    weight = mean.result(filled(0))["weight"]
    assert weight[0, 0] == (1 + 2 + 3 + 4 + 5 + 6 + 7) / 7
    assert weight[0, 1] == weight[1, 0] == weight[1, 1] == (3 + 4 + 5 + 6 + 7) / 5
    assert weight[3, 0] == weight[2, 2] == weight[0, 3] == (6 + 7) / 2


def test_weights_count_and_a_missing_level_does_not() -> None:
    small, whole = part(2), part(4)
    mean = NestedMean()
    mean.add(Update(reply(small, 1), small, weight=3))
    mean.add(Update(reply(whole, 5), whole, weight=1))
    assert mean.result(filled(0))["bias"].tolist() == [2, 2, 5, 5]  # (3*1 + 1*5) / 4


def test_entries_that_nobody_held_keep_their_value_exactly() -> None:
    small = part(2, 2)
    mean = NestedMean()
    mean.add(Update(reply(small, 1), small))
    before = {"weight": torch.randn(4, 4), "bias": torch.randn(4), "other": torch.randn(3)}
    after = mean.result(before)
    assert torch.equal(after["weight"][2:], before["weight"][2:])
    assert torch.equal(after["weight"][:, 2:], before["weight"][:, 2:])
    assert torch.equal(after["other"], before["other"])
    assert after["weight"][:2, :2].tolist() == [[1, 1], [1, 1]]


def test_a_round_without_replies_changes_nothing() -> None:
    before = filled(0.1)
    after = NestedMean().result(before)
    assert all(torch.equal(after[name], before[name]) for name in before)


def test_a_single_clients_state_is_the_result_where_it_holds() -> None:
    small = part(3)
    state = {"weight": torch.randn(3, 4), "bias": torch.randn(3)}
    mean = NestedMean()
    mean.add(Update(state, small, weight=17))
    after = mean.result(filled(0))
    torch.testing.assert_close(after["weight"][:3], state["weight"], rtol=0, atol=2**-40)
    torch.testing.assert_close(after["bias"][:3], state["bias"], rtol=0, atol=2**-40)


def test_two_levels_of_the_same_width_are_averaged_together() -> None:
    first, second = part(2), part(2)
    mean = NestedMean()
    mean.add(Update(reply(first, 1), first))
    mean.add(Update(reply(second, 2), second))
    assert mean.result(filled(0))["bias"].tolist() == [1.5, 1.5, 0, 0]


def test_wrap_around_windows_are_averaged_where_they_lie() -> None:
    mean = NestedMean()
    for shift, value in ((3, 1.0), (0, 3.0)):  # rows 3, 0 and rows 0, 1
        mapping = part(2, window=Window("rolling", shift))
        mean.add(Update(reply(mapping, value), mapping))
    assert mean.result(filled(9))["bias"].tolist() == [2, 3, 9, 1]


def test_the_rows_of_a_wrapped_window_keep_their_order() -> None:
    mapping = part(2, window=Window("rolling", 3))
    mean = NestedMean()
    mean.add(Update({"weight": torch.zeros(2, 4), "bias": torch.tensor([30.0, 10.0])}, mapping))
    assert mean.result(filled(0))["bias"].tolist() == [10, 0, 0, 30]


def test_a_block_that_no_client_held_keeps_its_value() -> None:
    full = build("resnet20", 10)
    mapping = slice_map(full, build("resnet20", 10, slice=Slice(blocks=((0,), (0,), (0,)))))
    state = {k: v.clone() for k, v in full.state_dict().items()}
    trained = {k: v + 1 for k, v in extract(state, mapping).items()}
    mean = NestedMean()
    mean.add(Update(trained, mapping))
    after = mean.result(state)
    assert torch.equal(after["layer2.1.conv1.weight"], state["layer2.1.conv1.weight"])
    assert not torch.equal(after["layer2.0.conv1.weight"], state["layer2.0.conv1.weight"])


def test_integer_buffers_are_averaged_and_rounded() -> None:
    full = nn.BatchNorm1d(2)
    mapping = slice_map(full, full)
    mean = NestedMean()
    for batches in (10, 13, 14):
        mean.add(
            Update({**full.state_dict(), "num_batches_tracked": torch.tensor(batches)}, mapping)
        )
    after = mean.result(full.state_dict())["num_batches_tracked"]
    assert after == 12
    assert after.dtype == torch.int64


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_all_float_types_are_averaged_and_kept(dtype: torch.dtype) -> None:
    full = nn.Linear(4, 4).to(dtype)
    mapping = slice_map(full, nn.Linear(4, 2).to(dtype))
    mean = NestedMean()
    for value in (1.0, 2.0):
        regions = mapping.regions.items()
        state = {name: torch.full(each.shape, value, dtype=dtype) for name, each in regions}
        mean.add(Update(state, mapping))
    after = mean.result(full.state_dict())["bias"]
    assert after.dtype == dtype
    assert after[:2].tolist() == [1.5, 1.5]


any_float32 = st.floats(-64, 64, width=32)
a_weight = st.integers(1, 5000) | st.floats(0.01, 100)


@settings(max_examples=100, deadline=None)
@given(
    weight=arrays(np.float32, (4, 4), elements=any_float32),
    clients=st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 4), windows, a_weight), max_size=8
    ),
)
def test_untrained_slices_leave_the_state_bit_for_bit(
    weight: np.ndarray, clients: list[tuple[int, int, Window, float]]
) -> None:
    state = {"weight": torch.from_numpy(weight), "bias": torch.from_numpy(weight[0].copy())}
    mean = NestedMean()
    for rows, columns, window, share in clients:
        mapping = part(rows, columns, window)
        mean.add(Update(extract(state, mapping), mapping, share))
    after = mean.result(state)
    assert all(torch.equal(after[name], state[name]) for name in state)


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_untrained_slices_of_a_network_leave_it_bit_for_bit(data: st.DataObject) -> None:
    exits = (3, 6, 9)
    full = build("resnet20", 10, slice=Slice(exits=exits))
    state = full.state_dict()
    mean = NestedMean()
    for _ in range(data.draw(st.integers(1, 4))):
        held = Slice(
            width=data.draw(st.sampled_from([0.2, 0.5, 0.7, 1.0])),
            blocks=data.draw(st.sampled_from([None, ((0,), (), (0, 2))])),
            exits=data.draw(st.sampled_from([(3,), (3, 6), exits])),
        )
        mapping = slice_map(full, build("resnet20", 10, slice=held, device="meta"),
                            data.draw(windows))  # fmt: skip
        mean.add(Update(extract(state, mapping), mapping, data.draw(a_weight)))
    after = mean.result(state)
    assert all(torch.equal(after[name], state[name]) for name in state)


@settings(max_examples=100, deadline=None)
@given(
    replies=st.lists(
        st.tuples(
            arrays(np.float32, (4, 4), elements=any_float32), st.integers(1, 4), windows, a_weight
        ),
        min_size=2,
        max_size=5,
    ),
    shuffled=st.randoms(),
)
def test_the_order_of_replies_changes_no_bit(
    replies: list[tuple[np.ndarray, int, Window, float]], shuffled: object
) -> None:
    def averaged(order: list[tuple[np.ndarray, int, Window, float]]) -> dict[str, Tensor]:
        mean = NestedMean()
        for values, rows, window, share in order:
            mapping = part(rows, 4, window)
            weight = torch.from_numpy(values[:rows].copy())
            mean.add(Update({"weight": weight, "bias": weight[:, 0].clone()}, mapping, share))
        return mean.result(filled(0.3))

    other = list(replies)
    shuffled.shuffle(other)  # type: ignore[attr-defined]
    first, second = averaged(replies), averaged(other)
    assert all(torch.equal(first[name], second[name]) for name in first)


@settings(max_examples=50, deadline=None)
@given(values=st.lists(st.tuples(st.floats(-10, 10, width=32), a_weight), min_size=1, max_size=8))
def test_the_mean_is_as_close_as_float32_is(values: list[tuple[float, float]]) -> None:
    whole = part(4)
    mean = NestedMean()
    for value, share in values:
        mean.add(Update(reply(whole, value), whole, share))
    expected = sum(v * w for v, w in values) / sum(w for _, w in values)
    found = mean.result(filled(0))["bias"]
    torch.testing.assert_close(found, torch.full((4,), float(expected)), rtol=2e-7, atol=1e-10)


@settings(max_examples=100, deadline=None)
@given(
    replies=st.lists(
        st.tuples(st.floats(-(2**40), 2**40, width=32), st.integers(1, 10**9)),
        min_size=1,
        max_size=6,
    )
)
def test_whole_weights_of_any_size_are_exact(replies: list[tuple[float, int]]) -> None:
    whole = part(4)
    forth, back = NestedMean(), NestedMean()
    for value, share in replies:
        forth.add(Update(reply(whole, value), whole, share))
    for value, share in reversed(replies):
        back.add(Update(reply(whole, value), whole, share))
    found = forth.result(filled(0))["bias"]
    assert torch.equal(found, back.result(filled(0))["bias"])
    steps = sum(round(Fraction(value) * 2**40) * share for value, share in replies)
    exact = Fraction(steps, sum(share for _, share in replies) * 2**40)
    within_a_step = abs(exact) <= Fraction(3, 4) / 2**40  # as good as the 0 of before
    assert found[0] == torch.tensor(0.0 if within_a_step else float(exact))


def test_a_light_client_counts_beside_one_ten_million_times_heavier() -> None:
    whole, small = part(4), part(2)
    mean = NestedMean()
    mean.add(Update(reply(whole, 1), whole, 10**7))
    mean.add(Update(reply(small, 10**7 + 2), small, 1))
    assert mean.result(filled(0))["bias"].tolist() == [2, 2, 1, 1]  # (1e7 + 1e7 + 2) / (1e7 + 1)


def test_clients_that_are_all_light_are_averaged_as_exactly_as_heavy_ones() -> None:
    small = part(2)
    for unit in (1, 10**7):  # as where a client of another level is that much larger
        mean = NestedMean(unit)
        mean.add(Update(reply(small, 0.1), small, 1))
        mean.add(Update(reply(small, 0.4), small, 2))
        found = mean.result(filled(0))["bias"][0]
        torch.testing.assert_close(found, torch.tensor(0.3), rtol=6e-8, atol=0)


def test_a_large_value_leaves_room_for_all_who_come_later() -> None:
    whole = part(4)
    mean = NestedMean()
    mean.add(Update(reply(whole, 4194303.5), whole))
    for _ in range(100):
        mean.add(Update(reply(whole, 5e4), whole))
    expected = (4194303.5 + 100 * 5e4) / 101
    assert mean.result(filled(0))["bias"][0] == torch.tensor(expected)


def test_the_sums_of_thousands_of_clients_do_not_overflow() -> None:
    one = nn.Linear(1, 1)
    mapping = slice_map(one, one)
    state = {"weight": torch.full((1, 1), 1000.0), "bias": torch.full((1,), -1000.0)}
    mean = NestedMean()
    for _ in range(10_000):  # 10^7 in steps of 2^-40 is beyond 2^63
        mean.add(Update(state, mapping))
    after = mean.result({name: tensor * 0 for name, tensor in state.items()})
    assert all(torch.equal(after[name], state[name]) for name in state)


def test_a_nan_of_before_does_not_outlive_finite_replies() -> None:
    small = part(2)
    mean = NestedMean()
    mean.add(Update(reply(small, 3), small))
    after = mean.result(filled(float("nan")))["bias"]
    assert after[:2].tolist() == [3, 3]
    assert after[2:].isnan().all()  # nobody held them


def test_complex_numbers_are_refused() -> None:
    full = nn.Module()
    full.weight = nn.Parameter(torch.ones(2, 2, dtype=torch.complex64))
    with pytest.raises(
        RefusedUpdateError, match=r"dtype: weight is torch.complex64: expected real"
    ):
        NestedMean().add(Update(full.state_dict(), slice_map(full, full)))


def test_integers_that_doubles_cannot_tell_apart_are_refused() -> None:
    full = nn.BatchNorm1d(2)
    state = {**full.state_dict(), "num_batches_tracked": torch.tensor(2**53 + 2)}
    with pytest.raises(RefusedUpdateError, match="too-large: num_batches_tracked"):
        NestedMean().add(Update(state, slice_map(full, full)))


def test_double_precision_is_averaged_in_double_precision() -> None:
    full = nn.Linear(1, 1).double()
    mapping = slice_map(full, full)
    mean = NestedMean()
    for value, share in ((1e-15, 1), (4e-15, 2)):
        state = {name: torch.full_like(t, value) for name, t in full.state_dict().items()}
        mean.add(Update(state, mapping, share))
    found = mean.result({name: t * 0 for name, t in full.state_dict().items()})["bias"]
    torch.testing.assert_close(found.detach()[0].item(), 3e-15, rtol=1e-14, atol=0)


@given(
    values=arrays(np.float64, 4, elements=st.floats(-1e9, 1e9)),
    shares=st.lists(a_weight, min_size=1, max_size=5),
)
def test_untrained_doubles_stay_bit_for_bit(values: np.ndarray, shares: list[float]) -> None:
    full = nn.Linear(4, 1, bias=False).double()
    state = {"weight": torch.from_numpy(values).view(1, 4)}
    mean = NestedMean()
    for share in shares:
        mean.add(Update(state, slice_map(full, full), share))
    assert torch.equal(mean.result(state)["weight"], state["weight"])


BAD_STATES = {
    "names": {"weight": torch.zeros(2, 4)},
    "shape": {"weight": torch.zeros(2, 3), "bias": torch.zeros(2)},
    "dtype": {"weight": torch.zeros(2, 4), "bias": torch.zeros(2, dtype=torch.float64)},
    "non-finite": {"weight": torch.ones(2, 4), "bias": torch.tensor([0, float("nan")])},
    "too-large": {"weight": torch.ones(2, 4), "bias": torch.tensor([1e30, 0])},
}


@pytest.mark.parametrize("reason", BAD_STATES)
@pytest.mark.parametrize("replies_before", [0, 1])
def test_a_refused_state_changes_nothing_and_says_why(reason: str, replies_before: int) -> None:
    small = part(2)
    mean = NestedMean()
    for _ in range(replies_before):
        mean.add(Update(reply(small, 1), small))
    before = {k: v for k, v in mean.state_dict().items() if v.any()}
    with pytest.raises(RefusedUpdateError, match=reason) as refusal:
        mean.add(Update(BAD_STATES[reason], small))
    assert refusal.value.reason == reason
    after = {k: v for k, v in mean.state_dict().items() if v.any()}
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert torch.equal(mean.result(filled(1))["weight"], torch.ones(4, 4))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["weight", "bias"])
def test_one_bad_value_anywhere_is_found(bad: float, name: str) -> None:
    full = nn.Linear(300, 200)
    mapping = slice_map(full, full)
    state = {k: v.detach().clone() for k, v in full.state_dict().items()}
    state[name].view(-1)[-7] = bad
    with pytest.raises(RefusedUpdateError, match=f"non-finite: {name}"):
        NestedMean().add(Update(state, mapping))


def test_extra_and_missing_names_are_named() -> None:
    with pytest.raises(RefusedUpdateError, match=r"missing \['bias'\], not expected \['biass'\]"):
        NestedMean().add(Update({"weight": torch.zeros(2, 4), "biass": torch.zeros(2)}, part(2)))


@pytest.mark.parametrize("weight", [0, -1, float("nan"), float("inf"), 1e-10, 1e10])
def test_a_weight_far_from_the_unit_is_an_error(weight: float) -> None:
    small = part(2)
    with pytest.raises(ValueError, match=r"not within 2\^-30 to 2\^30 of the unit 1.0"):
        NestedMean().add(Update(reply(small, 1), small, weight))


@pytest.mark.parametrize("weight", [2.0**-30, 2.0**30])
def test_weights_of_2_to_the_30_either_way_are_the_last_that_are_taken(weight: float) -> None:
    small = part(2)
    mean = NestedMean()
    mean.add(Update(reply(small, 5), small, weight))
    assert mean.result(filled(0))["bias"].tolist() == [5, 5, 0, 0]
    beyond = weight * (1.001 if weight > 1 else 0.999)
    with pytest.raises(RefusedUpdateError, match="weight: weight "):
        mean.add(Update(reply(small, 5), small, beyond))


@pytest.mark.parametrize("unit", [0.0, -1.0, float("inf"), float("nan")])
def test_a_unit_that_is_no_positive_number_is_an_error(unit: float) -> None:
    with pytest.raises(ValueError, match="is not a positive number"):
        NestedMean(unit)


def test_a_weight_that_is_not_given_is_one() -> None:
    small = part(2)
    mean = NestedMean()
    mean.add(Update(reply(small, 1), small))
    mean.add(Update(reply(small, 4), small, 2))
    assert mean.result(filled(0))["bias"].tolist() == [3, 3, 0, 0]


def test_the_sums_are_whole_steps_and_whole_weights() -> None:
    """Three of 2^-40 is three steps; a client counts 1, in one row of digits."""
    small = part(1, 1)
    mean = NestedMean()
    mean.add(Update(reply(small, 3 * 2.0**-40), small))
    mean.add(Update(reply(small, 1), small, 0.5 + 2.0**-31))
    saved = mean.state_dict()
    for kind in ("total", "count"):
        assert saved[f"{kind}.lowest.bias"] == -2
    digits = {kind: saved[f"{kind}.rows.bias"][:, 0].tolist() for kind in ("total", "count")}
    found = {
        kind: sum(Fraction(digit) * Fraction(2) ** (30 * (place - 2))
                  for place, digit in enumerate(rows))
        for kind, rows in digits.items()
    }  # fmt: skip
    weight = Fraction(1, 2) + Fraction(1, 2**31)
    assert found == {"total": 3 + 2**40 * weight, "count": 1 + weight}
    alone = NestedMean()
    alone.add(Update(reply(small, 3 * 2.0**-40), small))
    assert alone.state_dict()["total.rows.bias"].tolist() == [[3, 0, 0, 0]]


@pytest.mark.parametrize(("dtype", "step"), [(torch.float32, 2.0**-40), (torch.float64, 2.0**-100)])
def test_values_are_rounded_to_whole_steps_and_one_step_is_a_change(
    dtype: torch.dtype, step: float
) -> None:
    full = nn.Linear(1, 2).to(dtype)
    mapping = slice_map(full, full)
    before = {name: t * 0 for name, t in full.state_dict().items()}
    mean = NestedMean()
    values = torch.tensor([1.5, 1.0], dtype=torch.float64) * step
    mean.add(Update({"weight": before["weight"], "bias": values.to(dtype)}, mapping))
    assert mean.result(before)["bias"].tolist() == [2 * step, step]


def test_a_mean_of_integers_that_is_less_than_one_away_counts() -> None:
    full = nn.BatchNorm1d(2)
    mean = NestedMean()
    for batches in (12, 13, 13):
        state = {**full.state_dict(), "num_batches_tracked": torch.tensor(batches)}
        mean.add(Update(state, slice_map(full, full)))
    before = {**full.state_dict(), "num_batches_tracked": torch.tensor(12)}
    assert mean.result(before)["num_batches_tracked"] == 13


def test_the_largest_values_that_are_taken() -> None:
    full = nn.BatchNorm1d(1)
    mapping = slice_map(full, full)
    largest = {
        **full.state_dict(),
        "weight": torch.tensor([2.0**64]),
        "num_batches_tracked": torch.tensor(2**53),
    }
    mean = NestedMean()
    mean.add(Update(largest, mapping))
    after = mean.result(full.state_dict())
    assert (after["weight"].item(), after["num_batches_tracked"].item()) == (2.0**64, 2**53)
    beyond = {**largest, "weight": torch.tensor([2.0**64 + 2.0**41])}
    with pytest.raises(RefusedUpdateError, match="too-large: weight"):
        mean.add(Update(beyond, mapping))


def test_a_previous_tensor_of_another_size_is_an_error() -> None:
    small = part(2)
    mean = NestedMean()
    mean.add(Update(reply(small, 1), small))
    with pytest.raises(ValueError, match="bias: 4 sums, but 5 previous values"):
        mean.result({"weight": torch.zeros(4, 4), "bias": torch.zeros(5)})


def test_a_unit_lets_weights_be_of_any_size() -> None:
    small = part(2)
    mean = NestedMean(unit=1e-9)
    mean.add(Update(reply(small, 1), small, 1e-9))
    mean.add(Update(reply(small, 4), small, 2e-9))
    assert mean.result(filled(0))["bias"].tolist() == [3, 3, 0, 0]


def test_a_previous_state_without_a_held_tensor_is_an_error() -> None:
    small = part(2)
    mean = NestedMean()
    mean.add(Update(reply(small, 1), small))
    with pytest.raises(ValueError, match=r"the previous state lacks \['bias'\]"):
        mean.result({"weight": torch.zeros(4, 4)})


def test_a_mean_goes_on_from_its_saved_state() -> None:
    mappings = [part(rows) for rows in (1, 2, 3, 4)]
    replies = [(reply(mapping, 0.1 * i), mapping) for i, mapping in enumerate(mappings)]
    whole, half = NestedMean(), NestedMean()
    for state, mapping in replies[:2]:
        whole.add(Update(state, mapping))
        half.add(Update(state, mapping))
    resumed = NestedMean()
    resumed.load_state_dict(half.state_dict())
    for state, mapping in replies[2:]:
        whole.add(Update(state, mapping))
        resumed.add(Update(state, mapping))
    first, second = whole.result(filled(7)), resumed.result(filled(7))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_memory_does_not_grow_with_the_number_of_clients() -> None:
    full = nn.Linear(256, 256)
    narrow = nn.Linear(256, 128)

    def peak(clients: int) -> int:
        mean = NestedMean()
        tracemalloc.start()
        for client in range(clients):
            mapping = slice_map(full, narrow, Window("random", client))
            mean.add(Update(extract(full.state_dict(), mapping), mapping))
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used

    peak(2)
    assert peak(200) < 1.3 * peak(20)


def test_many_windows_in_one_round_are_all_counted() -> None:
    mean = NestedMean()
    for shift, _ in itertools.product(range(4), range(5)):
        mapping = part(1, window=Window("rolling", shift))
        mean.add(Update(reply(mapping, shift), mapping))
    assert mean.result(filled(9))["bias"].tolist() == [0, 1, 2, 3]


def test_averaging_leaves_torch_its_number_of_threads() -> None:
    """Parallel sums run on torch's OpenMP, and would set the threads of all that follows."""
    script = (
        "import torch; torch.set_num_threads(1); from torch import nn\n"
        "from models import slice_map; from strategies.aggregation.nested_mean import NestedMean\n"
        "from strategies.aggregation.update import Update\n"
        "net = nn.Linear(512, 512); mean = NestedMean()\n"
        "mean.add(Update(net.state_dict(), slice_map(net, net))); mean.result(net.state_dict())\n"
        "print(torch.get_num_threads())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "1\n", done.stderr
