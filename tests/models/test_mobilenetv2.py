"""MobileNetV2: torchvision's network at its smallest, and slices that are parts of the full one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torchvision

from models import Slice, SlicedNetwork, SliceError, Task, Window, build, extract, slice_map
from models.candidates import Candidates
from models.families import family
from models.layers import NormKind
from models.slicing import WindowKind
from strategies.levels.cost import cost
from tests.support.toy_networks import (
    assert_a_walk_goes_on_with_those_kept,
    assert_all_have_gradients,
    assert_like_blocks_behind_each_first,
    assert_slice_equals_masked_full,
    assert_untrained_slices_change_nothing,
    randomised,
)

MINI = "mobilenet_v2-mini"
UNITS = 17
BLOCKS = ((0,), (0, 1), (0, 2), (0, 1, 3), (0,), (0, 1, 2), (0,))


def candidates(name: str = "mobilenet_v2") -> Candidates:
    found = family(name).candidates
    assert found is not None
    return found


def published(classes: int, **options: Any) -> SlicedNetwork:
    """The smallest candidate, without the last 1x1 convolution cut: torchvision's network."""
    return build("mobilenet_v2", classes, slice=candidates().smallest, **options)


def test_the_smallest_candidate_has_the_published_numbers_of_parameters() -> None:
    net = published(1000, device="meta")
    assert sum(tensor.numel() for tensor in net.parameters()) == 3_504_872


def test_the_smallest_candidate_gives_torchvisions_answers() -> None:
    """Tensors come in torchvision's order, under names that tell stages."""
    theirs = randomised(torchvision.models.mobilenet_v2(num_classes=7)).eval()
    ours = published(7, stem="imagenet", norm="bn-running").eval()
    values = theirs.state_dict().values()
    ours.load_state_dict(dict(zip(ours.state_dict(), values, strict=True)))
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(ours(images)[-1], theirs(images))


def test_macs_of_the_published_network_are_the_published_ones() -> None:
    task = Task("mobilenet_v2", 1000, image_size=224, options=(("stem", "imagenet"),))
    assert cost(task, candidates().smallest).macs == 300_774_272


def test_small_images_keep_their_pixels_up_to_the_third_stage() -> None:
    net = build(MINI, 10, norm="gn")
    sizes = []
    for stage in range(9):
        module = net.get_submodule(f"features.{stage}")
        first = module.get_submodule("0") if 0 < stage < 8 else module
        first.register_forward_hook(lambda _, __, y: sizes.append(y.shape[-1]))
    net(torch.zeros(2, 3, 32, 32))
    assert sizes == [32, 32, 32, 16, 8, 8, 4, 4, 4]


@pytest.mark.parametrize(("kind", "mace"), [("depth", 0.205), ("width", 0.222), ("both", 0.323)])
def test_macs_of_ten_clients_half_of_them_the_smallest_are_near_table_2s(
    kind: str, mace: float
) -> None:
    """With 175 images each; there .22, .23 and .34 T, of architectures that clients chose."""
    task = Task("mobilenet_v2", 100)
    small, large = (
        cost(task, each).macs for each in (candidates().smallest, candidates().only(kind).largest)
    )
    assert 10 * 175 * (small + large) / 2 / 1e12 == pytest.approx(mace, abs=5e-4)


def parameters_by_hand(
    stem: int, widths: list[int], blocks: list[int], wide: int, classes: int
) -> int:
    """Each convolution's outputs have a norm: two numbers more a channel."""
    count, inputs = stem * (3 * 9 + 2), stem
    for stage, (width, number) in enumerate(zip(widths, blocks, strict=True)):
        for _ in range(number):
            inner = 6 * inputs if stage else inputs
            count += inner * (inputs + 2) if stage else 0
            count += inner * (9 + 2) + width * (inner + 2)
            inputs = width
    return count + wide * (inputs + 2) + (wide + 1) * classes


def test_the_largest_candidate_is_the_full_network_with_table_5s_numbers() -> None:
    full, mini = Task("mobilenet_v2", 100), Task(MINI)
    widths, blocks = [24, 32, 48, 88, 136, 224, 440], [1, 2, 6, 7, 6, 6, 1]
    expected = parameters_by_hand(32, widths, blocks, 1280, 100)
    assert cost(full, candidates().largest).parameters == expected == 7_144_404
    assert cost(full, candidates().largest) == cost(full)
    widths, blocks = [6, 8, 12, 22, 34, 56, 110], [1, 2, 3, 4, 3, 3, 1]
    expected = parameters_by_hand(8, widths, blocks, 320, 10)
    assert cost(mini, candidates(MINI).largest).parameters == expected
    assert cost(mini, candidates(MINI).largest) == cost(mini)


def test_a_share_for_each_stage_leaves_stem_and_last_convolution_and_one_for_all_cuts_them() -> (
    None
):
    for held, stem, last, wide in (
        (candidates().smallest, 32, 320, 1280),
        (Slice((0.5,) * 7), 32, 220, 1280),
        (Slice(0.5), 16, 220, 640),
    ):
        state = build("mobilenet_v2", 10, slice=held, device="meta").state_dict()
        shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
        assert shapes["features.0.0.weight"] == (stem, 3, 3, 3)
        assert shapes["features.1.0.block.0.0.weight"] == (stem, 1, 3, 3)
        assert shapes["features.8.0.weight"] == (wide, last, 1, 1)
        assert shapes["classifier.1.weight"] == (10, wide)


def test_a_block_is_six_times_as_wide_inside_as_what_it_reads_in_the_slice() -> None:
    widths = (1, 0.75, 0.5, 1, 1, 1, 1)  # of 24, 32 and 48 channels
    state = build("mobilenet_v2", 10, slice=Slice(widths), device="meta").state_dict()
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    assert shapes["features.3.0.block.0.0.weight"] == (144, 24, 1, 1)
    assert shapes["features.3.0.block.1.0.weight"] == (144, 1, 3, 3)
    assert shapes["features.3.0.block.2.0.weight"] == (24, 144, 1, 1)
    assert shapes["features.3.1.block.0.0.weight"] == (144, 24, 1, 1)


@pytest.mark.parametrize("name", ["mobilenet_v2", MINI])
@pytest.mark.parametrize("steps", ["none", "learnable"])
def test_blocks_behind_a_stages_first_are_alike(name: str, steps: str) -> None:
    for held in (candidates(name).smallest, candidates(name).largest, Slice(0.3)):
        assert_like_blocks_behind_each_first(name, held, steps=steps)


def test_absent_blocks_and_all_behind_the_last_exit_are_not_built() -> None:
    net = build(MINI, 10, slice=Slice(blocks=BLOCKS, exits=(9,)), device="meta")
    names = {".".join(name.split(".")[:3]) for name in net.state_dict()}
    assert {name for name in names if "block" not in name and "features.0" not in name} == {
        "features.1.0", "features.2.0", "features.2.1", "features.3.0", "features.3.2",
        "features.4.0", "features.4.1", "exits.9.convs", "exits.9.norms", "exits.9.fc",
    }  # fmt: skip


def test_a_skipped_block_computes_what_a_step_of_zero_computes() -> None:
    """Blocks that have no shortcut have no step either."""
    options: dict[str, Any] = {"steps": "constant", "norm": "bn-running"}
    full = randomised(build(MINI, 10, **options)).eval()
    part = build(MINI, 10, slice=Slice(blocks=BLOCKS), **options).eval()
    part.load_state_dict(extract(full.state_dict(), slice_map(full, part)))
    steps = {name for name in full.state_dict() if name.endswith("step")}
    absent = steps - part.state_dict().keys()
    assert len(steps) == UNITS - 7
    assert len(absent) == UNITS - sum(map(len, BLOCKS))
    images = torch.randn(2, 3, 16, 16)
    assert not torch.equal(part(images)[0], full(images)[0])
    full.load_state_dict({name: torch.zeros(()) for name in absent}, strict=False)
    assert torch.equal(part(images)[0], full(images)[0])


@pytest.mark.parametrize(
    ("held", "window", "norm", "head"),
    [
        (Slice(0.65, exits=(1, 8, 17)), "prefix", "bn-running", "conv"),
        (Slice(0.3, BLOCKS, exits=(7, 12)), "random", "bn", "pool"),
        (Slice((1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4), exits=(2, 17)), "rolling", "bn-static", "pool"),
        (Slice(0.5, BLOCKS), "lower-right", "bn-running", "pool"),
        (candidates(MINI).smallest, "middle", "bn-static", "conv"),
        (candidates(MINI).drawn(np.random.default_rng(1)), "prefix", "bn", "conv"),
    ],
)
def test_a_slice_computes_what_the_masked_network_computes(
    held: Slice, window: WindowKind, norm: NormKind, head: str
) -> None:
    exits = tuple(sorted({*(held.exits or ()), UNITS}))
    assert_slice_equals_masked_full(MINI, held, Window(window, 3), exits, norm=norm, head=head)


@pytest.mark.parametrize("held", [Slice(0.4, exits=(1, 11)), Slice(0.2, BLOCKS, exits=(9, 17))])
@pytest.mark.parametrize(("norm", "scaler"), [("bn", "none"), ("gn", "always")])
def test_every_parameter_of_a_slice_gets_a_gradient(
    held: Slice, norm: NormKind, scaler: str
) -> None:
    net = build(MINI, 10, slice=held, norm=norm, scaler=scaler, steps="learnable")
    assert_all_have_gradients(net, torch.randn(8, 3, 16, 16))


def test_untrained_slices_leave_the_network_bit_for_bit() -> None:
    slices = [Slice(0.65, BLOCKS, exits=(6, 12)), Slice(0.3, exits=(6,)), Slice(0.5, exits=(12,))]
    assert_untrained_slices_change_nothing(MINI, (6, 12), slices, head="pool")


def test_a_walk_goes_on_with_those_kept() -> None:
    net = build(MINI, 10, slice=Slice(0.5, exits=(2, 10, 17)), norm="gn")
    assert_a_walk_goes_on_with_those_kept(net, torch.randn(9, 3, 16, 16))


def test_digits_of_one_channel_and_8x8_pixels_pass() -> None:
    for stem in ("cifar", "imagenet"):
        net = build(MINI, 10, 1, Slice(0.1, exits=(3, 17)), stem=stem, norm="gn")
        assert [logits.shape for logits in net(torch.randn(4, 1, 8, 8))] == [(4, 10), (4, 10)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stem": "cifar-pool"}, "unknown stem 'cifar-pool'; choose from cifar, imagenet"),
        ({"head": "attention"}, "unknown exit head 'attention'; choose from conv, pool"),
        ({"dropout": 1}, "dropout is 1: expected a share, less than 1"),
        ({"steps": "some"}, "unknown steps 'some'; choose from none, learnable, constant"),
    ],
)
def test_an_unknown_option_is_an_error_with_the_choices(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build(MINI, 10, slice=Slice(0.5, exits=(3, 17)), device="meta", **options)


@pytest.mark.parametrize(
    ("held", "message"),
    [
        (Slice(width=(1.0, 0.5)), "one share for each of 7 stages"),
        (Slice(blocks=((0, 1),) * 6), "one tuple for each of 7 stages"),
        (Slice(blocks=((0, 2), *BLOCKS[1:])), r"stage 1 has blocks 0 to 0; blocks \[2\]"),
        (Slice(blocks=(*BLOCKS[:5], (1, 2), (0,))), "stage 6: block 0 changes the shape, so it"),
        (Slice(exits=(18,)), r"mobilenet_v2-mini has units 1 to 17; exits \(18,\) are not there"),
    ],
)
def test_a_slice_that_the_network_does_not_have_is_refused(held: Slice, message: str) -> None:
    with pytest.raises(SliceError, match=message):
        build(MINI, 10, slice=held, device="meta")
