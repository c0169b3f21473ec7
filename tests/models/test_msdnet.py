"""MSDNet24: what ScaleFL's Table 7 counts, and slices that are the network with the rest masked."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from models import Slice, SliceError, Window, build
from models.layers import NormKind
from models.msdnet import ConvNorm, Head
from models.task import Task
from strategies.levels.planning import (
    Level,
    SearchGrid,
    Split,
    halving_ratios,
    levels_of,
    own_exit_only,
    search_splits,
)
from tests.support.toy_networks import (
    WINDOWS,
    assert_a_walk_goes_on_with_those_kept,
    assert_all_have_gradients,
    assert_slice_equals_masked_full,
    assert_untrained_slices_change_nothing,
)

MSDNET = Task("msdnet24")
PUBLISHED = [Split(15, 0.65), Split(18, 0.70), Split(21, 0.85), Split(24, 1.0)]
ALL = tuple(range(1, 25))


def millions(number: float, digits: int) -> str:
    return f"{number / 1e6:.{digits}f}"


def as_printed(level: Level) -> tuple[str, str]:
    """Parameters and operations as the paper counts them.

    Its operations are also one for each value that a ReLU or a pool reads, and for each bias of a
    classifier. Its level 1 also has layer 15 at the middle scale, which no exit at 15 reads.
    """
    net = MSDNET.build(level.counted, device="meta")
    parameters, extra = level.cost.parameters, 0

    def count(module: nn.Module, _: object, output: torch.Tensor) -> None:
        nonlocal extra
        extra += output.numel()
        if isinstance(module, Head):
            channels = module.fc.in_features
            extra += channels * 2 * 2  # pooled from 2x2

    for module in net.modules():
        if isinstance(module, ConvNorm | Head):
            module.register_forward_hook(count)
    net.eval()(torch.zeros(1, 3, 32, 32, device="meta"))
    macs = level.cost.macs
    if level.split.depth == 15:
        deeper = MSDNET.build(Slice(level.split.width, exits=(16,)), device="meta")
        idle = deeper.get_submodule("layers.15_1")
        parameters += sum(tensor.numel() for tensor in idle.parameters())
        for conv in idle.modules():
            if isinstance(conv, nn.Conv2d):
                macs += conv.weight.numel() * 16 * 16
                extra += conv.out_channels * 16 * 16
    return millions(parameters, 3), millions(macs + extra, 2)


def test_msdnet24_costs_what_scalefls_table_7_says() -> None:
    levels = levels_of(MSDNET, PUBLISHED)
    assert [level.cost.parameters for level in levels] == [279_370, 643_099, 1_380_319, 2_646_556]
    assert [millions(level.cost.macs, 2) for level in levels] == [
        "15.22",
        "32.40",
        "59.21",
        "101.38",
    ]
    assert [as_printed(level) for level in levels] == [
        ("0.281", "15.84"), ("0.643", "32.76"), ("1.380", "59.68"), ("2.647", "101.97"),
    ]  # fmt: skip


def test_levels_of_width_alone_count_all_four_classifiers() -> None:
    levels = levels_of(MSDNET, [Split(24, width) for width in (0.35, 0.5, 0.75, 1.0)])
    counts = [millions(level.cost.parameters, 2) for level in levels]
    assert counts == ["0.30", "0.66", "1.34", "2.65"]  # printed: .30, .66, 1.33, 2.64 (truncated)
    assert [own_exit_only(MSDNET, level) for level in levels] == levels
    assert levels[0].slice.exits == (24,)  # what a device holds is another matter


def test_the_search_keeps_to_the_published_base() -> None:
    splits = search_splits(
        MSDNET, halving_ratios(2), grid=SearchGrid(depth_steps=8, width_step=0.15)
    )
    [half, whole] = levels_of(MSDNET, splits)
    assert whole.cost.parameters == 2_646_556
    assert abs(half.cost.parameters / whole.cost.parameters - 0.5) <= 0.05


def test_nothing_that_no_exit_reads_exists() -> None:
    def held(depth: int) -> set[str]:
        net = build("msdnet24", 10, slice=Slice(exits=(depth,)), device="meta")
        return {name.split(".")[1] for name in net.state_dict() if name.startswith("layers")}

    assert held(2) == {"1_1", "1_2", "2_2"}
    assert held(4) - held(3) == {"2_0", "3_1", "4_2"}
    assert held(18) - held(17) == {"18_2"}  # one scale is left
    everything = {f"{layer}_{scale}" for layer in range(1, 25) for scale in range(3)}
    ended = {f"{layer}_0" for layer in range(9, 25)} | {f"{layer}_1" for layer in range(17, 25)}
    assert held(24) == everything - ended


@pytest.mark.parametrize("norm", ["bn", "bn-running"])
@settings(max_examples=6, deadline=None)
@given(data=st.data())
def test_a_slice_computes_what_the_masked_network_computes(
    norm: NormKind, data: st.DataObject
) -> None:
    exits = data.draw(
        st.sets(st.integers(1, 24), min_size=1, max_size=5).map(lambda s: tuple(sorted(s)))
    )
    held = Slice(
        width=data.draw(st.sampled_from([0.1, 0.3, 0.5, 0.65, 0.85, 1.0])),
        exits=exits,
        rounding=data.draw(st.sampled_from(["floor", "ceil"])),
    )
    window = Window(data.draw(st.sampled_from(WINDOWS)), data.draw(st.integers(0, 99)))
    assert_slice_equals_masked_full("msdnet24", held, window, ALL, norm=norm)


@pytest.mark.parametrize("window", WINDOWS)
def test_every_exit_of_a_slice_is_the_masked_networks(window: str) -> None:
    held = Slice(width=0.65, exits=ALL)
    assert_slice_equals_masked_full("msdnet24", held, Window(window, 3), ALL)  # type: ignore[arg-type]


@pytest.mark.parametrize("exits", [(1,), (2, 3), (8,), (9,), (10, 16), (17,), (15, 18, 21, 24)])
@pytest.mark.parametrize("scaler", ["none", "always"])
def test_every_parameter_of_a_slice_gets_a_gradient(exits: tuple[int, ...], scaler: str) -> None:
    net = build("msdnet24", 10, slice=Slice(width=0.35, exits=exits), scaler=scaler)
    assert_all_have_gradients(net, torch.randn(8, 3, 16, 16))


def test_untrained_slices_leave_the_network_bit_for_bit() -> None:
    exits = (8, 9, 15, 24)
    slices = [Slice(0.65, exits=(8,)), Slice(0.3, exits=(8, 9, 15)), Slice(0.85, exits=exits)]
    assert_untrained_slices_change_nothing("msdnet24", exits, slices)


@pytest.mark.parametrize("norm", ["gn", "bn-running"])
def test_a_walk_goes_on_with_those_kept(norm: NormKind) -> None:
    net = build("msdnet24", 10, slice=Slice(0.5, exits=(2, 8, 9, 17, 24)), norm=norm)
    assert_a_walk_goes_on_with_those_kept(net, torch.randn(9, 3, 16, 16))


@pytest.mark.parametrize("norm", ["bn", "gn"])
def test_digits_of_one_channel_and_8x8_pixels_pass(norm: NormKind) -> None:
    net = build("msdnet24", 10, in_channels=1, slice=Slice(0.35, exits=(15, 24)), norm=norm)
    assert [logits.shape for logits in net(torch.randn(4, 1, 8, 8))] == [(4, 10), (4, 10)]


@pytest.mark.parametrize(
    ("held", "message"),
    [
        (Slice(width=(1.0, 0.5, 0.5)), "MSDNet has no stages, expected one share"),
        (Slice(blocks=((0,), (0,))), "MSDNet has none, each layer reads all before it"),
        (Slice(exits=(25,)), r"msdnet24 has units 1 to 24; exits \(25,\) are not there"),
    ],
)
def test_a_slice_that_the_network_does_not_have_is_refused(held: Slice, message: str) -> None:
    with pytest.raises(SliceError, match=message):
        build("msdnet24", 10, slice=held)
