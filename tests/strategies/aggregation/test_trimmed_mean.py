"""The trimmed mean and the median of nested slices: by hand, and against NumPy on dense stacks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor, nn

from models import Slice, SliceMap, Window, build, extract, slice_map
from strategies.aggregation import trimmed_mean
from strategies.aggregation.trimmed_mean import Median, TrimmedMean
from strategies.aggregation.update import RefusedUpdateError, Update
from tests.models.test_slicing import windows
from tests.support.toy_networks import same

FULL = nn.Linear(4, 4)
MOST = float(np.float32(3e9))


def part(rows: int, columns: int = 4, window: Window = Window()) -> SliceMap:  # noqa: B008
    return slice_map(FULL, nn.Linear(columns, rows), window)


def reply(mapping: SliceMap, value: float, weight: float = 1.0) -> Update:
    state = {name: torch.full(each.shape, float(value)) for name, each in mapping.regions.items()}
    return Update(state, mapping, weight)


def filled(value: float) -> dict[str, Tensor]:
    return {"weight": torch.full((4, 4), float(value)), "bias": torch.full((4,), float(value))}


def combined(
    aggregator: TrimmedMean, updates: list[Update], before: float = 9
) -> dict[str, Tensor]:
    for update in updates:
        aggregator.add(update)
    return aggregator.result(filled(before))


def test_the_median_of_an_entry_is_over_those_who_held_it() -> None:
    narrow, wide = part(2, 2), part(3)
    after = combined(
        Median(), [reply(narrow, 1), reply(narrow, 2), reply(wide, 1000), reply(wide, 5)]
    )
    assert after["weight"][0].tolist() == [3.5, 3.5, 502.5, 502.5]  # of 1 2 5 1000, and of 5 1000
    assert after["bias"].tolist() == [3.5, 3.5, 502.5, 9]
    assert after["weight"][3].tolist() == [9, 9, 9, 9]  # nobody held it


def test_of_five_a_fifth_at_each_end_is_cut_and_of_four_none() -> None:
    whole, narrow = part(4), part(2)
    updates = [reply(whole, value) for value in (-1e6, 1, 2, 6)]
    assert combined(TrimmedMean(0.2), updates)["bias"].tolist() == [(9 - 1e6) / 4] * 4
    after = combined(TrimmedMean(0.2), [*updates, reply(narrow, 4)])["bias"].tolist()
    cut, uncut = 7 / 3, (9 - 1e6) / 4  # of 1, 2 and 4; and of all four
    assert after == pytest.approx([cut, cut, uncut, uncut], rel=1e-6)


@pytest.mark.parametrize("aggregator", [lambda: TrimmedMean(0.49), Median])
def test_one_holder_is_taken_as_it_is_and_two_are_averaged(aggregator: type[Median]) -> None:
    assert combined(aggregator(), [reply(part(2), 3)])["bias"].tolist() == [3, 3, 9, 9]
    assert combined(aggregator(), [reply(part(2), 3), reply(part(4), 5)])["bias"].tolist() == [
        *(4, 4, 5, 5)
    ]


def test_weights_are_not_counted() -> None:
    whole = part(4)
    updates = [reply(whole, 1, 1e6), reply(whole, 2), reply(whole, 3)]
    assert combined(Median(), updates)["bias"].tolist() == [2] * 4


@pytest.mark.parametrize(
    ("trim", "holders", "cut"),
    [(0.2, 4, 0), (0.2, 5, 1), (0.29, 100, 29), (0.49, 3, 1), (0.49, 100, 49), (0, 7, 0)],
)
def test_the_share_that_is_cut_is_rounded_down(trim: float, holders: int, cut: int) -> None:
    assert TrimmedMean(trim).cut(holders) == cut


def test_the_median_leaves_the_middle_one_or_two() -> None:
    assert [n - 2 * Median().cut(n) for n in range(1, 7)] == [1, 2, 1, 2, 1, 2]


@pytest.mark.parametrize("trim", [-0.1, 0.5, float("nan"), "much"])
def test_a_share_that_would_leave_nothing_is_an_error(trim: float) -> None:
    with pytest.raises(ValueError, match=f"trim is {trim}: expected 0 or more, below 0.5"):
        TrimmedMean(trim)


def test_integers_are_rounded() -> None:
    full = nn.BatchNorm1d(2)
    median = Median()
    for batches in (10, 13, 14, 900):
        state = {**full.state_dict(), "num_batches_tracked": torch.tensor(batches)}
        median.add(Update(state, slice_map(full, full)))
    after = median.result(full.state_dict())["num_batches_tracked"]
    assert after == 14  # 13.5, to even
    assert after.dtype == torch.int64


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_all_float_types_are_kept(dtype: torch.dtype) -> None:
    full = nn.Linear(4, 4).to(dtype)
    mapping = slice_map(full, nn.Linear(4, 2).to(dtype))
    median = Median()
    for value in (1.0, 1.5, 1000.0):
        regions = mapping.regions.items()
        state = {name: torch.full(each.shape, value, dtype=dtype) for name, each in regions}
        median.add(Update(state, mapping))
    after = median.result(full.state_dict())["bias"]
    assert after.dtype == dtype
    assert after[:2].tolist() == [1.5, 1.5]
    assert torch.equal(after[2:], full.bias[2:])


def test_what_cannot_be_used_is_refused_and_leaves_no_trace() -> None:
    median, whole = Median(), part(4)
    bad = reply(whole, 5)
    for state, reason in (
        ({"weight": bad.state["weight"]}, "names"),
        ({**bad.state, "bias": torch.full((4,), float("nan"))}, "non-finite"),
        ({**bad.state, "bias": torch.full((4,), 1e30)}, "too-large"),
    ):
        with pytest.raises(RefusedUpdateError) as refusal:
            median.add(Update(state, whole))
        assert refusal.value.reason == reason
    assert combined(median, [reply(whole, 1)])["bias"].tolist() == [1] * 4


def test_a_state_without_a_tensor_that_clients_held_is_an_error() -> None:
    median = Median()
    median.add(reply(part(4), 1))
    with pytest.raises(ValueError, match=r"the previous state lacks \['weight'\]"):
        median.result({"bias": torch.zeros(4)})
    with pytest.raises(ValueError, match="bias: 3 previous values, but others held"):
        median.result({**filled(0), "bias": torch.zeros(3)})


def test_untrained_slices_of_a_network_leave_it_bit_for_bit() -> None:
    full = build("resnet20", 10, slice=Slice(exits=(3, 9)))
    state = {k: torch.where(v == 0, -0.0, v) if v.is_floating_point() else v
             for k, v in full.state_dict().items()}  # fmt: skip
    for aggregator in (Median(), TrimmedMean(0.3)):
        for held, window in (
            (Slice(width=0.5, exits=(3,)), Window("random", 3)),
            (Slice(width=0.7, exits=(9,)), Window("rolling", 5)),
            (Slice(exits=(3, 9)), Window()),
        ):
            mapping = slice_map(full, build("resnet20", 10, slice=held, device="meta"), window)
            aggregator.add(Update(extract(state, mapping), mapping))
        after = aggregator.result(state)
        assert same(after, state)
        assert all(torch.equal(after[k].signbit(), state[k].signbit()) for k in state)


# --- against NumPy -----------------------------------------------------------------------------

Client = tuple[np.ndarray, int, int, Window]
clients = st.lists(
    st.tuples(
        arrays(np.float32, (4, 4), elements=st.floats(-MOST, MOST, width=32)),
        st.integers(1, 4),
        st.integers(1, 4),
        windows,
    ),
    min_size=1,
    max_size=7,
)


def update_of(client: Client) -> Update:
    values, rows, columns, window = client
    weight = torch.from_numpy(values[:rows, :columns].copy())
    return Update({"weight": weight, "bias": weight[:, 0].clone()}, part(rows, columns, window))


def dense(update: Update) -> np.ndarray:
    """Return the weights in the full matrix; NaN where the client has none."""
    stack, region = np.full((4, 4), np.nan), update.map.regions["weight"]
    stack[np.ix_(*(np.arange(4)[index] for index in region.axes))] = update.state["weight"]
    return stack


@settings(max_examples=100, deadline=None)
@given(
    found=clients, trim=st.sampled_from([0.0, 0.2, 0.34, 0.49, None]), at_a_time=st.integers(1, 99)
)
def test_the_result_is_that_of_numpy_on_dense_stacks(
    found: list[Client], trim: float | None, at_a_time: int
) -> None:
    updates = [update_of(client) for client in found]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trimmed_mean, "VALUES_AT_A_TIME", at_a_time)
        aggregator = Median() if trim is None else TrimmedMean(trim)
        after = combined(aggregator, updates)["weight"].numpy()
    stack = np.stack([dense(update) for update in updates])
    for entry in np.ndindex(4, 4):
        held = np.sort(stack[:, *entry][~np.isnan(stack[:, *entry])])
        if not held.size:
            expected = np.float64(9)
        elif trim is None:
            expected = np.median(held)
        else:
            cut = int(trim * held.size)
            expected = held[cut : held.size - cut].mean()
        np.testing.assert_allclose(after[entry], expected, rtol=1e-6, atol=1e-3)


@settings(max_examples=50, deadline=None)
@given(found=clients, shuffled=st.randoms(), median=st.booleans())
def test_the_order_of_replies_changes_no_bit(
    found: list[Client], shuffled: object, median: bool
) -> None:
    other = list(found)
    shuffled.shuffle(other)  # type: ignore[attr-defined]
    one, two = (
        combined(Median() if median else TrimmedMean(0.3), [update_of(each) for each in order])
        for order in (found, other)
    )
    assert same(one, two)
    assert all(torch.equal(one[name].signbit(), two[name].signbit()) for name in one)


@settings(max_examples=100, deadline=None)
@given(
    honest=st.lists(st.floats(-1, 1, width=32), min_size=3, max_size=9),
    lies=st.lists(st.sampled_from([-MOST, MOST, 1e-3]) | st.floats(-64, 64, width=32), max_size=8),
    trim=st.sampled_from([0.2, 0.34, None]),
)
def test_liars_that_are_fewer_than_the_trim_cannot_leave_the_honest_range(
    honest: list[float], lies: list[float], trim: float | None
) -> None:
    def aggregator() -> TrimmedMean:
        return Median() if trim is None else TrimmedMean(trim)

    while lies and len(lies) > aggregator().cut(len(honest) + len(lies)):
        lies = lies[1:]
    whole = part(4)
    after = combined(aggregator(), [reply(whole, value) for value in (*honest, *lies)])["bias"]
    assert min(honest) <= float(after[0]) <= max(honest)
