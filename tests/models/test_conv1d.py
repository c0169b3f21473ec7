"""Networks for series: kernels along time alone, and slices that are parts of the full one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from models import Slice, Task, Window, build, family
from models.layers import NormKind
from strategies.levels.cost import cost
from tests.support.toy_networks import (
    WINDOWS,
    assert_a_walk_goes_on_with_those_kept,
    assert_all_have_gradients,
    assert_like_blocks_behind_each_first,
    assert_slice_equals_masked_full,
    assert_untrained_slices_change_nothing,
    randomised,
)

MICRO = "conv1d-micro"


def test_parameters_and_macs_are_those_worked_out_by_hand() -> None:
    """Windows of 50 steps of 6 channels become 25, then 13 steps; kernels have 5 weights."""
    parameters, macs, inputs = 6 * 16 * 5, 6 * 16 * 5 * 50, 16
    for width, steps in ((32, 50), (64, 25), (128, 13)):
        weights = inputs * width * (5 + 1) + 5 * width * width * 5
        parameters += weights + 2 * inputs + 5 * 2 * width
        macs += weights * steps
        inputs = width
    found = cost(Task("conv1d", 7, 6, length=50))
    assert found.parameters == parameters + 2 * 128 + 129 * 7 == 606_215
    assert found.macs == macs + 128 * 7 == 10_289_472


def test_a_convolution_reads_neighbours_in_time_of_all_channels() -> None:
    net: Any = build(MICRO, 4, in_channels=2)
    x = torch.randn(3, 2, 9)
    (features,) = net.enter(x)
    expected = F.conv1d(x, net.conv1.weight.squeeze(2), padding=1)
    torch.testing.assert_close(features.squeeze(2), expected)


@pytest.mark.parametrize("kernel", [1, 3, 7])
def test_no_weight_lies_beside_the_series_as_one_of_3x3_would(kernel: int) -> None:
    """Each entry of each kernel reads something, those of the exits' heads too."""
    for head in ("conv", "attention"):
        net = build(MICRO, 4, 2, Slice(exits=(1, 4, 9)), kernel=kernel, head=head, norm="gn")
        labels = torch.arange(4)
        logits = net(torch.randn(4, 2, 64))
        torch.stack([F.cross_entropy(each, labels) for each in logits]).sum().backward()
        for name, tensor in net.named_parameters():
            if tensor.ndim == 4:
                assert tensor.shape[2:] in ((1, kernel), (1, 1)), name
                assert tensor.grad is not None, name
                assert bool((tensor.grad.abs().sum((0, 1)) > 0).all()), name


@pytest.mark.parametrize("length", [1, 2, 5, 50])
@pytest.mark.parametrize("head", ["conv", "pool", "attention"])
def test_series_of_any_length_pass(length: int, head: str) -> None:
    net = build("conv1d", 7, 6, Slice(0.3, exits=(2, 9)), head=head)
    assert [each.shape for each in net(torch.randn(4, 6, length))] == [(4, 7), (4, 7)]


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (4, "kernel is 4: expected an odd number of steps, such as 5"),
        (0, "kernel is 0: expected a whole number, at least 1"),
        ("wide", "kernel is 'wide': expected a whole number, at least 1"),
    ],
)
def test_a_kernel_that_has_no_middle_is_refused(kernel: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build("conv1d", 7, 6, kernel=kernel, device="meta")


@pytest.mark.parametrize("norm", ["bn", "bn-running", "bn-static"])
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_a_slice_computes_what_the_masked_network_computes(
    norm: NormKind, data: st.DataObject
) -> None:
    units = st.sets(st.integers(1, 9), min_size=1).map(lambda s: tuple(sorted(s)))
    kept = st.sets(st.integers(0, 2)).map(lambda s: tuple(sorted(s)))
    width = st.sampled_from([0.3, 0.5, 0.75, 1.0])
    held = Slice(
        width=data.draw(width | st.tuples(width, width, width)),
        blocks=data.draw(st.none() | st.tuples(kept, kept, kept)),
        exits=data.draw(units),
    )
    window = Window(data.draw(st.sampled_from(WINDOWS)), data.draw(st.integers(0, 99)))
    options: dict[str, Any] = {
        "head": data.draw(st.sampled_from(["conv", "pool", "attention"])),
        "kernel": data.draw(st.sampled_from([1, 3, 5])),
    }
    length = data.draw(st.integers(1, 20))
    assert_slice_equals_masked_full(
        MICRO, held, window, tuple(range(1, 10)), length, norm=norm, **options
    )


@pytest.mark.parametrize("seed", range(3))
def test_a_candidate_computes_what_the_masked_network_computes(seed: int) -> None:
    candidates = family("conv1d").candidates
    assert candidates is not None
    held = candidates.drawn(np.random.default_rng(seed))
    assert_slice_equals_masked_full("conv1d", held, Window(), (9,), norm="bn-static")


@pytest.mark.parametrize("kept", [None, ((1,), (0, 2), ()), ((), (), ())])
@pytest.mark.parametrize("head", ["conv", "pool", "attention"])
@pytest.mark.parametrize(("norm", "scaler"), [("bn", "none"), ("gn", "always")])
def test_every_parameter_of_a_slice_gets_a_gradient(
    kept: tuple[tuple[int, ...], ...] | None, head: str, norm: NormKind, scaler: str
) -> None:
    held = Slice(0.5, blocks=kept, exits=(2, 5, 9))
    net = build(MICRO, 10, slice=held, head=head, norm=norm, scaler=scaler, steps="learnable")
    assert_all_have_gradients(net, torch.randn(8, 3, 20))


def test_untrained_slices_leave_the_network_bit_for_bit() -> None:
    slices = [Slice(0.65, exits=(4, 7)), Slice((0.3, 0.5, 1.0), ((0,), (1, 2), ()), (4,))]
    assert_untrained_slices_change_nothing(MICRO, (4, 7), slices, head="conv")


def test_a_walk_goes_on_with_those_kept() -> None:
    net = build(MICRO, 10, slice=Slice(0.5, exits=(2, 5, 9)), norm="gn")
    assert_a_walk_goes_on_with_those_kept(net, torch.randn(9, 3, 16))


def test_blocks_behind_a_stages_first_are_alike() -> None:
    assert_like_blocks_behind_each_first("conv1d", Slice(0.3), steps="learnable")


def test_a_skipped_block_computes_what_a_step_of_zero_computes() -> None:
    options: dict[str, Any] = {"steps": "constant", "norm": "bn-running"}
    full = randomised(build(MICRO, 10, **options)).eval()
    part = build(MICRO, 10, slice=Slice(blocks=((0,), (1,), ())), **options).eval()
    held = part.state_dict().keys()
    part.load_state_dict({name: each for name, each in full.state_dict().items() if name in held})
    absent = {n for n in full.state_dict() if n.endswith("step")} - held
    assert len(absent) == 9 - 2
    series = torch.randn(2, 3, 12)
    assert not torch.equal(part(series)[0], full(series)[0])
    full.load_state_dict({name: torch.zeros(()) for name in absent}, strict=False)
    assert torch.equal(part(series)[0], full(series)[0])
