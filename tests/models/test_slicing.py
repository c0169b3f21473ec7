"""Slices, windows, and the map between a full and a sliced network."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from models import Region, Slice, SliceError, Window, declare_parts, extract, slice_map
from models.slicing import Index, WindowKind, check_stages, is_running_statistic
from tests.support.toy_networks import Attention, Dense, zeros_outside

ALIGNED: list[WindowKind] = ["prefix", "lower-right", "middle", "random", "rolling"]
windows = st.builds(
    Window,
    st.sampled_from([*ALIGNED, "upper-right", "lower-left"]),
    st.integers(0, 50),
)


def statistics_in(bank: str) -> Callable[[str], str | None]:
    return lambda name: bank if is_running_statistic(name) else None


def kept(index: Index, n: int) -> list[int]:
    positions: list[int] = np.arange(n)[index].tolist()
    return positions


@pytest.mark.parametrize(
    ("share", "full", "floor", "ceil"),
    [(0.7, 64, 44, 45), (0.5, 7, 3, 4), (0.29, 100, 29, 29), (0.01, 16, 1, 1), (1.0, 16, 16, 16)],
)
def test_channels_are_the_rounded_share_and_never_none(
    share: float, full: int, floor: int, ceil: int
) -> None:
    assert Slice(width=share).channels(full) == floor
    assert Slice(width=share, rounding="ceil").channels(full) == ceil


def test_width_can_differ_by_stage() -> None:
    assert [Slice(width=(1.0, 0.5, 0.25)).channels(64, stage) for stage in range(3)] == [64, 32, 16]


def test_without_a_stage_the_first_ones_width_counts() -> None:
    assert Slice(width=(1.0, 0.5)).share() == 1.0
    assert Slice(width=(1.0, 0.5)).channels(64) == 64


@pytest.mark.parametrize(
    ("slice", "error"),
    [
        (Slice(0.5), None),
        (Slice((0.5, 1.0)), None),
        (Slice((0.5, 1.0, 1.0)), r"width \(0.5, 1.0, 1.0\): expected one share for each of 2"),
        (Slice(blocks=((0, 2), (1,))), None),
        (Slice(blocks=((), ())), None),
        (Slice(blocks=((0,),)), r"blocks \(\(0,\),\): expected one tuple for each of 2 stages"),
        (Slice(blocks=((0, 3), (1,))), r"stage 1 has blocks 0 to 2; blocks \[3\] are not there"),
        (Slice(blocks=((0,), (-1, 1, 2))), r"stage 2 has blocks 0 to 1; blocks \[-1, 2\]"),
    ],
)
def test_a_slice_has_only_stages_and_blocks_of_its_network(slice: Slice, error: str | None) -> None:
    with pytest.raises(SliceError, match=error) if error else nullcontext():
        check_stages(slice, blocks=(3, 2))


def test_an_unknown_rounding_is_an_error_with_the_choices() -> None:
    with pytest.raises(SliceError, match="unknown rounding 'up'; choose floor or ceil"):
        Slice(rounding="up")  # type: ignore[arg-type]


@pytest.mark.parametrize("width", [0, -0.5, 1.5, (1.0, 0.0), float("nan")])
def test_a_width_that_is_no_share_is_refused(width: float) -> None:
    with pytest.raises(SliceError, match="expected 0 < width <= 1"):
        Slice(width=width)


@pytest.mark.parametrize("exits", [(), (2, 1), (3, 3)])
def test_exits_out_of_order_are_refused(exits: tuple[int, ...]) -> None:
    with pytest.raises(SliceError, match="ascending"):
        Slice(exits=exits)


@pytest.mark.parametrize(
    ("window", "outputs", "inputs"),
    [
        (Window(), [0, 1, 2], [0, 1, 2]),
        (Window("lower-right"), [7, 8, 9], [7, 8, 9]),
        (Window("upper-right"), [7, 8, 9], [0, 1, 2]),
        (Window("lower-left"), [0, 1, 2], [7, 8, 9]),
        (Window("middle"), [3, 4, 5], [3, 4, 5]),
        (Window("rolling", 4), [4, 5, 6], [4, 5, 6]),
        (Window("rolling", 8), [8, 9, 0], [8, 9, 0]),
        (Window("rolling", 19), [9, 0, 1], [9, 0, 1]),
    ],
)
def test_windows_keep_three_of_ten(window: Window, outputs: list[int], inputs: list[int]) -> None:
    assert kept(window.indices(10, 3, axis=0), 10) == outputs
    assert kept(window.indices(10, 3, axis=1), 10) == inputs


def test_random_windows_differ_by_seed_and_agree_across_layers() -> None:
    first, again, other = (Window("random", seed).indices(64, 16) for seed in (1, 1, 2))
    assert kept(first, 64) == kept(again, 64) == sorted(set(kept(first, 64)))
    assert kept(first, 64) != kept(other, 64)


def test_all_seeds_together_reach_every_channel() -> None:
    reached = {
        channel for seed in range(40) for channel in kept(Window("random", seed).indices(32, 8), 32)
    }
    assert reached == set(range(32))


def test_an_unknown_window_is_an_error_with_the_choices() -> None:
    with pytest.raises(SliceError, match=r"unknown window 'left'; choose from prefix, .*rolling"):
        Window("left")  # type: ignore[arg-type]


@given(
    shape=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), max_size=4),
    window=windows,
)
def test_runs_enumerate_exactly_the_entries_of_a_region(
    shape: list[tuple[int, int]], window: Window
) -> None:
    full = tuple(max(pair) for pair in shape)
    part = tuple(min(pair) for pair in shape)
    axes = tuple(
        window.indices(n, k, axis) for axis, (n, k) in enumerate(zip(full, part, strict=True))
    )
    region = Region("w", full, axes, part, torch.int64)
    positions = torch.arange(math.prod(full)).reshape(full)
    starts, length = region.runs
    listed = [start + i for start in starts.tolist() for i in range(length)]
    assert region.of(positions).flatten().tolist() == listed
    assert tuple(region.of(positions).shape) == part


@pytest.mark.parametrize(
    ("full", "part", "starts", "length"),
    [
        ((6,), (4,), [0], 4),
        ((4, 6), (2, 6), [0, 6], 6),  # a row a run, though both rows lie together
        ((4, 6), (2, 3), [0, 6], 3),
        ((3, 4, 2), (2, 3, 2), [0, 8], 6),  # what is whole behind a cut axis prolongs its runs
        ((3, 4, 2), (2, 3, 1), [0, 2, 4, 8, 10, 12], 1),
    ],
)
def test_runs_are_as_long_as_can_be_within_a_row(
    full: tuple[int, ...], part: tuple[int, ...], starts: list[int], length: int
) -> None:
    region = Region("w", full, tuple(slice(0, k) for k in part), part, torch.float32)
    assert (region.runs[0].tolist(), region.runs[1]) == (starts, length)


def test_a_tensor_that_does_not_fit_is_named_with_both_shapes() -> None:
    wide, narrow = nn.Sequential(nn.Linear(4, 8)), nn.Sequential(nn.Linear(4, 9))
    with pytest.raises(SliceError, match=r"0.weight: sliced shape \(9, 4\) .* full shape \(8, 4\)"):
        slice_map(wide, narrow)


def test_a_tensor_of_another_rank_is_named_with_both_shapes() -> None:
    with pytest.raises(SliceError, match=r"0.weight: sliced shape \(8, 4\) .*\(8, 4, 1\)"):
        slice_map(nn.Sequential(nn.Conv1d(4, 8, 1)), nn.Sequential(nn.Linear(4, 8)))


def test_a_tensor_that_the_full_network_lacks_is_named() -> None:
    with pytest.raises(SliceError, match=r"bias \(8,\) of the slice is not in the full network"):
        slice_map(nn.Linear(4, 8, bias=False), nn.Linear(4, 8))


def test_parts_must_add_up_and_must_match_between_full_and_slice() -> None:
    layer = nn.Linear(6, 2)
    with pytest.raises(SliceError, match=r"\(2, 3\) of weight do not add up to axis 1: 6"):
        declare_parts(layer, "weight", 1, (2, 3))
    declare_parts(layer, "weight", 1, (2, 4))
    with pytest.raises(SliceError, match=r"weight: axis 1 has parts \(4,\).* \(2, 4\)"):
        slice_map(layer, nn.Linear(4, 2))


def test_extracting_from_a_state_of_another_shape_is_an_error() -> None:
    mapping = slice_map(nn.Linear(4, 8), nn.Linear(4, 4))
    with pytest.raises(SliceError, match=r"weight: expected shape \(8, 4\), found shape \(4, 4\)"):
        extract(nn.Linear(4, 4).state_dict(), mapping)
    with pytest.raises(SliceError, match=r"bias: expected shape \(8,\), found nothing"):
        extract({"weight": torch.zeros(8, 4)}, mapping)


def test_an_extracted_slice_is_a_copy() -> None:
    net = nn.Linear(4, 4)
    before = net.weight.detach().clone()
    for tensor in extract(net.state_dict(), slice_map(net, nn.Linear(4, 4))).values():
        tensor.zero_()
    assert torch.equal(net.weight, before)


@pytest.mark.parametrize("kind", ALIGNED)
@pytest.mark.parametrize("network", [Dense, Attention])
@settings(max_examples=10, deadline=None)
@given(width=st.sampled_from([0.25, 0.5, 0.75]), seed=st.integers(0, 20))
def test_axes_made_of_parts_are_cut_in_each_part(
    network: type[Dense] | type[Attention], kind: WindowKind, width: float, seed: int
) -> None:
    torch.manual_seed(seed)
    full, part = network(), network(Slice(width=width))
    mapping = slice_map(full, part, Window(kind, seed))
    part.load_state_dict(extract(full.state_dict(), mapping))
    names = [name for name in full.state_dict() if not name.startswith(("fc", "out"))]
    masked = network()
    masked.load_state_dict(zeros_outside(full.state_dict(), mapping, *names))
    image = torch.randn(2, 3, 6, 6) if network is Dense else torch.randn(2, 4, 3)
    torch.testing.assert_close(part(image), masked(image))


def flattened(channels: int, run: int = 2) -> nn.Module:
    """A layer that reads images of two pixels, flattened."""
    net = nn.Sequential(nn.Linear(2 * channels, 1, bias=False))
    declare_parts(net[0], "weight", 1, (2 * channels // run,), run)
    return net


@pytest.mark.parametrize(
    ("window", "columns"),
    # hand: channel c of three is columns 2c and 2c + 1; from the third on, two are 2 and 0.
    [(Window(), [0, 1, 2, 3]), (Window("rolling", seed=2), [4, 5, 0, 1])],
)
def test_channels_of_flattened_images_are_cut_whole(window: Window, columns: list[int]) -> None:
    full, part = flattened(3), flattened(2)
    cut = extract(full.state_dict(), slice_map(full, part, window))
    assert torch.equal(cut["0.weight"], full.state_dict()["0.weight"][:, columns])


def test_flattened_images_of_another_size_do_not_fit() -> None:
    with pytest.raises(SliceError, match=r"parts \(4,\), which do not fit in \(3,\) in runs of 2"):
        slice_map(flattened(3), flattened(2, run=1))
    with pytest.raises(SliceError, match=r"parts \(3,\) in runs of 2 of weight do not add up"):
        declare_parts(nn.Linear(5, 1), "weight", 1, (3,), 2)


def test_private_tensors_live_whole_in_their_bank() -> None:
    full, half = nn.BatchNorm1d(8), nn.BatchNorm1d(4)
    mapping = slice_map(full, half, bank_of=statistics_in("half"))
    starts, length = mapping.regions["running_mean"].runs
    assert (starts.tolist(), length, mapping.regions["running_mean"].banked) == ([0], 4, True)
    state = {**full.state_dict(), "running_mean@half": torch.arange(4.0)}
    state |= {"running_var@half": torch.ones(4), "num_batches_tracked@half": torch.tensor(7)}
    cut = extract(state, mapping)
    assert cut["running_mean"].tolist() == [0, 1, 2, 3]
    assert cut["num_batches_tracked"] == 7
    assert cut["weight"].tolist() == full.weight[:4].tolist()
