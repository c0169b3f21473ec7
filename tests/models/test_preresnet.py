"""Pre-activation residual networks: FedFA's sizes, and slices that are parts of the full one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from models import Slice, SliceError, Task, Window, build, extract, slice_map
from models.candidates import Candidates
from models.families import family
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

MINI = "preresnet-mini"
FULL = Task("preresnet")


def candidates(name: str = "preresnet") -> Candidates:
    found = family(name).candidates
    assert found is not None
    return found


def parameters_by_hand(stem: int, widths: tuple[int, ...], blocks: int, classes: int = 10) -> int:
    """Convolutions of 3x3, two a block; norms of two numbers a channel; projections of 1x1."""
    count, inputs = 3 * stem * 9, stem
    for width in widths:
        count += 2 * inputs + inputs * width * (9 + 1)
        count += (blocks - 1) * (2 * width + width * width * 9)
        count += blocks * (2 * width + width * width * 9)
        inputs = width
    return count + 2 * inputs + (inputs + 1) * classes


@pytest.mark.parametrize(
    ("kind", "widths", "blocks", "count"),
    [
        ("depth", (64, 128, 256, 512), 6, 36_259_146),
        ("width", (88, 176, 352, 704), 3, 32_954_346),
        ("both", (88, 176, 352, 704), 6, 68_515_146),
    ],
)
def test_the_largest_candidates_have_table_5s_widths_and_blocks(
    kind: str, widths: tuple[int, ...], blocks: int, count: int
) -> None:
    found = cost(FULL, candidates().only(kind).largest)
    assert found.parameters == parameters_by_hand(64, widths, blocks) == count


def test_the_smallest_candidates_have_table_5s_widths_and_blocks() -> None:
    found = cost(FULL, candidates().smallest)
    assert found.parameters == parameters_by_hand(64, (64, 128, 256, 512), 3) == 17_446_986
    mini = cost(Task(MINI), candidates(MINI).smallest)
    assert mini.parameters == parameters_by_hand(16, (16, 32, 64), 2) == 175_322


def test_the_largest_candidate_is_the_full_network() -> None:
    for name in ("preresnet", MINI):
        task = Task(name)
        assert cost(task, candidates(name).largest) == cost(task)


def test_macs_are_those_worked_out_by_hand() -> None:
    """A stage's pixels are a quarter of those before: 3 blocks of 64 at 32x32 take as many MACs
    as 3 of 128 at 16x16, but for the first ones, which read half of the channels."""
    pixels, width = 32 * 32, 64
    conv = pixels * 9 * width * width
    first = 6 * conv + pixels * width * width
    later = conv // 2 + 5 * conv + pixels * width * width // 2
    expected = 9 * 3 * width * pixels + first + 3 * later + 512 * 10
    assert cost(FULL, candidates().smallest).macs == expected == 861_606_912


@pytest.mark.parametrize(("kind", "mace"), [("depth", 2.30), ("width", 2.16), ("both", 3.66)])
def test_macs_of_ten_clients_half_of_them_the_smallest_are_near_table_2s(
    kind: str, mace: float
) -> None:
    """With 175 images each; there 2.05, 2.29 and 5.10 T, of architectures that clients chose."""
    small, large = (
        cost(FULL, each).macs for each in (candidates().smallest, candidates().only(kind).largest)
    )
    assert 10 * 175 * (small + large) / 2 / 1e12 == pytest.approx(mace, abs=0.005)


def test_a_block_adds_its_convolutions_to_what_it_reads_and_activates_before_them() -> None:
    net = randomised(build(MINI, 10, norm="gn"))
    block: Any = net.get_submodule("layer1.1")
    x = torch.randn(2, 22, 5, 5)
    y = block.conv1(F.relu(block.act1.norm(x)))
    y = block.conv2(F.relu(block.act2.norm(y)))
    torch.testing.assert_close(block(x), x + y)
    first: Any = net.get_submodule("layer2.0")
    read = F.relu(first.act1.norm(x))
    y = first.conv2(F.relu(first.act2.norm(first.conv1(read))))
    torch.testing.assert_close(first(x), first.downsample(read) + y)
    assert first(x).shape == (2, 44, 3, 3)


def test_a_share_for_each_stage_leaves_the_stem_alone_and_one_for_all_cuts_it() -> None:
    for held, stem, widths in (
        (candidates(MINI).smallest, 16, (16, 32, 64)),
        (Slice((0.5, 0.5, 0.5)), 16, (11, 22, 44)),
        (Slice(0.5), 8, (11, 22, 44)),
    ):
        shapes = {n: t.shape for n, t in build(MINI, 10, slice=held).state_dict().items()}
        assert shapes["conv1.weight"] == (stem, 3, 3, 3)
        inputs = stem
        for stage, width in enumerate(widths, 1):
            assert shapes[f"layer{stage}.0.conv1.weight"] == (width, inputs, 3, 3)
            assert shapes[f"layer{stage}.0.downsample.weight"] == (width, inputs, 1, 1)
            assert shapes[f"layer{stage}.1.conv2.weight"] == (width, width, 3, 3)
            inputs = width
        assert shapes["fc.weight"] == (10, inputs)


@pytest.mark.parametrize("name", ["preresnet", MINI])
@pytest.mark.parametrize("steps", ["none", "learnable"])
def test_blocks_behind_a_stages_first_are_alike(name: str, steps: str) -> None:
    for held in (candidates(name).smallest, candidates(name).largest, Slice(0.3)):
        assert_like_blocks_behind_each_first(name, held, steps=steps)


def test_a_skipped_first_block_keeps_its_shortcut_alone() -> None:
    net = build(MINI, 10, slice=Slice(blocks=((0, 1), (2,), ())))
    held = [name for name in net.state_dict() if name.startswith("layer3")]
    assert held == [
        f"layer3.0.{n}" for n in ("act1.norm.weight", "act1.norm.bias", "downsample.weight")
    ]
    assert {name[:8] for name in net.state_dict() if name.startswith("layer2")} == {
        "layer2.0", "layer2.2",
    }  # fmt: skip
    assert net(torch.randn(2, 3, 16, 16))[0].shape == (2, 10)


def test_a_skipped_block_computes_what_a_step_of_zero_computes() -> None:
    options: dict[str, Any] = {"steps": "constant", "norm": "bn-running"}
    full = randomised(build(MINI, 10, **options)).eval()
    kept = ((0, 2), (1,), ())
    part = build(MINI, 10, slice=Slice(blocks=kept), **options).eval()
    part.load_state_dict(extract(full.state_dict(), slice_map(full, part)))
    steps = {name for name in full.state_dict() if name.endswith("step")}
    absent = steps - part.state_dict().keys()
    assert len(steps) == 12
    assert len(absent) == 12 - 3
    images = torch.randn(2, 3, 16, 16)
    assert not torch.equal(part(images)[0], full(images)[0])
    full.load_state_dict({name: torch.zeros(()) for name in absent}, strict=False)
    assert torch.equal(part(images)[0], full(images)[0])


@pytest.mark.parametrize("norm", ["bn", "bn-running", "bn-static"])
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_a_slice_computes_what_the_masked_network_computes(
    norm: NormKind, data: st.DataObject
) -> None:
    units = st.sets(st.integers(1, 12), min_size=1).map(lambda s: tuple(sorted(s)))
    kept = st.sets(st.integers(0, 3)).map(lambda s: tuple(sorted(s)))
    width = st.sampled_from([0.3, 0.5, 0.75, 1.0])
    held = Slice(
        width=data.draw(width | st.tuples(width, width, width)),
        blocks=data.draw(st.none() | st.tuples(kept, kept, kept)),
        exits=data.draw(units),
    )
    window = Window(data.draw(st.sampled_from(WINDOWS)), data.draw(st.integers(0, 99)))
    head = data.draw(st.sampled_from(["conv", "pool", "attention"]))
    assert_slice_equals_masked_full(MINI, held, window, tuple(range(1, 13)), norm=norm, head=head)


@pytest.mark.parametrize("seed", range(3))
def test_a_candidate_computes_what_the_masked_network_computes(seed: int) -> None:
    held = candidates(MINI).drawn(np.random.default_rng(seed))
    assert_slice_equals_masked_full(MINI, held, Window(), (12,), norm="bn-static")


@pytest.mark.parametrize("kept", [None, ((1,), (0, 3), ()), ((), (), ())])
@pytest.mark.parametrize("head", ["conv", "pool", "attention"])
@pytest.mark.parametrize(("norm", "scaler"), [("bn", "none"), ("gn", "always")])
def test_every_parameter_of_a_slice_gets_a_gradient(
    kept: tuple[tuple[int, ...], ...] | None, head: str, norm: NormKind, scaler: str
) -> None:
    held = Slice(0.5, blocks=kept, exits=(2, 7, 12))
    net = build(MINI, 10, slice=held, head=head, norm=norm, scaler=scaler, steps="learnable")
    assert_all_have_gradients(net, torch.randn(8, 3, 16, 16))


def test_a_scaler_is_in_front_of_each_norm_and_divides_by_the_share_of_what_it_reads() -> None:
    net: Any = build(MINI, 10, slice=Slice((0.5, 0.25, 1.0)), scaler="always")
    ones = torch.ones(1)
    found = [
        float(net.get_submodule(name).scale(ones))
        for name in ("layer1.0.act1", "layer1.0.act2", "layer2.0.act1", "layer2.0.act2", "act")
    ]
    assert found == [1, 2, 2, 4, 1]


def test_untrained_slices_leave_the_network_bit_for_bit() -> None:
    slices = [Slice(0.65, exits=(6, 9)), Slice((0.3, 0.5, 1.0), ((0,), (1, 2), ()), (6,))]
    assert_untrained_slices_change_nothing(MINI, (6, 9), slices, head="pool")


def test_a_walk_goes_on_with_those_kept() -> None:
    net = build(MINI, 10, slice=Slice(0.5, exits=(2, 8, 12)), norm="gn")
    assert_a_walk_goes_on_with_those_kept(net, torch.randn(9, 3, 16, 16))


def test_nothing_behind_the_last_exit_exists() -> None:
    net = build(MINI, 10, slice=Slice(exits=(3, 6)))
    assert {name.split(".")[0] for name in net.state_dict()} == {
        "conv1", "layer1", "layer2", "exits",
    }  # fmt: skip
    assert "layer2.1.conv1.weight" in net.state_dict()
    assert "layer2.2.conv1.weight" not in net.state_dict()


def test_digits_of_one_channel_and_8x8_pixels_pass() -> None:
    net = build(MINI, 10, in_channels=1, slice=Slice(0.1, exits=(3, 12)))
    assert [logits.shape for logits in net(torch.randn(4, 1, 8, 8))] == [(4, 10), (4, 10)]


@pytest.mark.parametrize(
    ("held", "message"),
    [
        (Slice(width=(1.0, 0.5)), "one share for each of 3 stages"),
        (Slice(blocks=((0,), (0,))), "one tuple for each of 3 stages"),
        (Slice(blocks=((0,), (0, 4), ())), r"stage 2 has blocks 0 to 3; blocks \[4\]"),
        (Slice(exits=(13,)), r"preresnet-mini has units 1 to 12; exits \(13,\) are not there"),
    ],
)
def test_a_slice_that_the_network_does_not_have_is_refused(held: Slice, message: str) -> None:
    with pytest.raises(SliceError, match=message):
        build(MINI, 10, slice=held, device="meta")
