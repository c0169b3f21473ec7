"""EfficientNet-B4: torchvision's network, and slices that are it with the rest masked."""

from __future__ import annotations

import pytest
import torch
import torchvision
from torch import nn

from models import Slice, SliceError, Window, build
from models.efficientnet import MBConv
from models.layers import NormKind
from models.slicing import WindowKind
from models.task import Task
from strategies.levels.planning import Split, levels_of
from tests.support.toy_networks import (
    assert_a_walk_goes_on_with_those_kept,
    assert_all_have_gradients,
    assert_slice_equals_masked_full,
    assert_untrained_slices_change_nothing,
    randomised,
)

IMAGENET = Task("efficientnet_b4", num_classes=1000, image_size=224)
BLOCKS = ((0,), (0, 2), (0, 1, 2, 3), (0, 1, 5), (0, 3), (0, 1, 2, 6, 7), (0,))


def test_torchvision_weights_load_and_give_torchvisions_answers() -> None:
    theirs = randomised(torchvision.models.efficientnet_b4(num_classes=7)).eval()
    ours = build("efficientnet_b4", 7, norm="bn-running").eval()
    ours.load_state_dict(theirs.state_dict())
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(ours(images)[-1], theirs(images))


def test_blocks_are_left_out_in_training_as_often_as_torchvision_leaves_them_out() -> None:
    with torch.device("meta"):
        theirs = torchvision.models.efficientnet_b4()
    ours = build("efficientnet_b4", 10, device="meta")
    shares = [module.dropped for module in ours.modules() if isinstance(module, MBConv)]
    depths = [m for m in theirs.modules() if isinstance(m, torchvision.ops.StochasticDepth)]
    assert shares == pytest.approx([module.p for module in depths])


def test_a_left_out_block_gives_its_input_and_the_others_make_up_for_it() -> None:
    net = build("efficientnet_b4", 10, norm="bn-running", slice=Slice(0.1, exits=(2,)))
    block = net.get_submodule("features.1.1")
    assert isinstance(block, MBConv)
    block.block, block.dropped = nn.Sequential(), 0.25
    ones = torch.ones(64, 2, 1, 1)
    assert block.train()(ones).unique().tolist() == pytest.approx([1, 1 + 1 / 0.75])
    assert torch.equal(block.eval()(ones), 2 * ones)


def test_costs_of_the_full_network_and_of_scalefls_splits() -> None:
    """Torchvision says 19,341,616 parameters; at 224x224 its 1.50 G MACs are counted here."""
    splits = [Split(22, 0.65), Split(26, 0.65), Split(30, 0.82), Split(32, 1.0)]
    levels = levels_of(IMAGENET, splits)
    assert levels[-1].cost.parameters == 19_341_616
    assert [f"{level.cost.parameters / 1e6:.2f}" for level in levels] == [
        "1.99", "4.72", "12.04", "19.34",
    ]  # fmt: skip
    assert [f"{level.cost.macs / 1e6:.1f}" for level in levels] == [
        "463.2", "582.3", "1097.2", "1503.7",
    ]  # fmt: skip


def test_every_channel_count_is_cut_down_to_its_share() -> None:
    net = build("efficientnet_b4", 10, slice=Slice(0.3), device="meta")
    shapes = {name: tuple(tensor.shape) for name, tensor in net.state_dict().items()}
    # hand: floor of .3 times 48, 32, 192, 8, 32 and 448, 1792
    assert shapes["features.0.0.weight"] == (14, 3, 3, 3)
    assert shapes["features.2.1.block.0.0.weight"] == (57, 9, 1, 1)
    assert shapes["features.2.1.block.1.0.weight"] == (57, 1, 3, 3)
    assert shapes["features.2.1.block.2.fc1.weight"] == (2, 57, 1, 1)
    assert shapes["features.2.1.block.3.0.weight"] == (9, 57, 1, 1)
    assert shapes["features.8.0.weight"] == (537, 134, 1, 1)
    assert shapes["classifier.1.weight"] == (10, 537)


def test_nothing_behind_the_last_exit_exists_and_absent_blocks_leave_names_alone() -> None:
    held = Slice(0.1, blocks=BLOCKS, exits=(9,))
    net = build("efficientnet_b4", 10, slice=held, device="meta")
    names = {".".join(name.split(".")[:3]) for name in net.state_dict()}
    blocks = {name for name in names if name.startswith("features") and "0." not in name[9:11]}
    assert blocks == {
        "features.1.0", "features.2.0", "features.2.2", "features.3.0", "features.3.1",
        "features.3.2",
    }  # fmt: skip
    assert not any(name.startswith("classifier") for name in names)


@pytest.mark.parametrize(
    ("held", "window", "norm", "head"),
    [
        (Slice(0.65, exits=(1, 10, 22, 32)), "prefix", "bn-running", "conv"),
        (Slice(0.1, exits=(2, 6, 32)), "random", "bn-running", "conv"),
        (Slice(0.3, BLOCKS, exits=(16, 22)), "middle", "bn", "pool"),
        (Slice((1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4), exits=(1, 32)), "rolling", "bn-static", "pool"),
        (Slice(0.5, BLOCKS), "lower-right", "bn-running", "pool"),
    ],
)
def test_a_slice_computes_what_the_masked_network_computes(
    held: Slice, window: WindowKind, norm: NormKind, head: str
) -> None:
    exits = tuple(sorted({*(held.exits or ()), 32}))
    assert_slice_equals_masked_full(
        "efficientnet_b4", held, Window(window, 3), exits, size=64, norm=norm, head=head
    )


@pytest.mark.parametrize("held", [Slice(0.2, exits=(1, 22)), Slice(0.1, BLOCKS, exits=(26, 32))])
@pytest.mark.parametrize(("norm", "scaler"), [("bn", "none"), ("gn", "always")])
def test_every_parameter_of_a_slice_gets_a_gradient(
    held: Slice, norm: NormKind, scaler: str
) -> None:
    net = build("efficientnet_b4", 10, slice=held, norm=norm, scaler=scaler)
    assert_all_have_gradients(net, torch.randn(8, 3, 32, 32))


def test_untrained_slices_leave_the_network_bit_for_bit() -> None:
    slices = [Slice(0.65, BLOCKS, exits=(6, 17)), Slice(0.3, exits=(6,)), Slice(0.5, exits=(17,))]
    assert_untrained_slices_change_nothing("efficientnet_b4", (6, 17), slices, head="pool")


@pytest.mark.parametrize("norm", ["gn", "bn-running"])
def test_a_walk_goes_on_with_those_kept(norm: NormKind) -> None:
    net = build("efficientnet_b4", 10, slice=Slice(0.25, exits=(2, 16, 32)), norm=norm)
    assert_a_walk_goes_on_with_those_kept(net, torch.randn(9, 3, 32, 32))


def test_digits_of_one_channel_and_8x8_pixels_pass() -> None:
    net = build("efficientnet_b4", 10, in_channels=1, slice=Slice(0.1, exits=(3, 32)))
    assert [logits.shape for logits in net(torch.randn(4, 1, 8, 8))] == [(4, 10), (4, 10)]


@pytest.mark.parametrize(
    ("held", "message"),
    [
        (Slice(width=(1.0, 0.5)), "one share for each of 7 stages"),
        (Slice(blocks=((0, 1),) * 6), "one tuple for each of 7 stages"),
        (Slice(blocks=((0, 2), *BLOCKS[1:])), r"stage 1 has blocks 0 to 1; blocks \[2\]"),
        (Slice(blocks=(*BLOCKS[:-1], (1,))), "stage 7: block 0 changes the shape, so it cannot be"),
        (Slice(exits=(33,)), r"efficientnet_b4 has units 1 to 32; exits \(33,\) are not there"),
    ],
)
def test_a_slice_that_the_network_does_not_have_is_refused(held: Slice, message: str) -> None:
    with pytest.raises(SliceError, match=message):
        build("efficientnet_b4", 10, slice=held, device="meta")
