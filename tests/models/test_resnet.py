"""The residual networks: whole, sliced, and against torchvision's."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from models import (
    Slice,
    SlicedNetwork,
    SliceError,
    Task,
    Window,
    build,
    extract,
    names,
    register,
    slice_map,
)
from models.layers import AttentionHead, NormKind, StaticBatchNorm2d
from models.loading import load_pretrained
from models.residual_blocks import BasicBlock, Bottleneck, Channels
from models.resnet import Architecture, ResNet
from tests.support.toy_networks import (
    WINDOWS,
    assert_all_have_gradients,
    assert_slice_equals_masked_full,
    randomised,
)

RESNETS = [name for name in names() if name.startswith("resnet")]
SMALL = Architecture(
    Bottleneck, 8, inner=(12, 16), outputs=(16, 32), blocks=(3, 2), classifier="fc"
)
register("test-bottleneck", SMALL.units)(partial(ResNet, SMALL))


def parameters(net: SlicedNetwork) -> int:
    return sum(tensor.numel() for tensor in net.parameters())


@pytest.mark.parametrize(
    ("name", "classes", "count"),
    # hand: resnet20 has 269,722 parameters with option A (as published); the projections of
    # option B add 16*32 + 2*32 and 32*64 + 2*64.
    [("resnet20", 10, 269_722 + 576 + 2_176), ("resnet110", 10, 1_730_714)],
)
def test_parameter_counts_are_the_published_ones(name: str, classes: int, count: int) -> None:
    assert parameters(build(name, classes, device="meta")) == count


def test_option_a_shortcuts_have_no_parameters() -> None:
    assert parameters(build("resnet20", 10, device="meta", shortcut="A")) == 269_722
    assert parameters(build("resnet56", 10, device="meta", shortcut="A")) == 853_018


@pytest.mark.parametrize("name", ["resnet18", "resnet34"])
def test_torchvision_weights_load_and_give_torchvisions_answers(name: str) -> None:
    theirs = randomised(getattr(torchvision.models, name)(num_classes=7)).eval()
    ours = build(name, 7, stem="imagenet", norm="bn-running").eval()
    ours.load_state_dict(theirs.state_dict())
    images = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(ours(images)[-1], theirs(images))


def test_wide_resnet_has_torchvisions_names_and_shapes_and_no_others() -> None:
    with torch.device("meta"):
        theirs = torchvision.models.wide_resnet101_2()
    ours = build("wide_resnet101_2", 1000, device="meta", stem="imagenet", norm="bn-running")
    expected = {name: tensor.shape for name, tensor in theirs.state_dict().items()}
    assert {name: tensor.shape for name, tensor in ours.state_dict().items()} == expected
    assert parameters(ours) == 126_886_696
    ten = build("wide_resnet101_2", 10, device="meta", stem="imagenet")
    assert parameters(ten) == 126_886_696 - 990 * (2048 + 1)  # 124.86 M


def test_a_pretrained_wide_resnet_gives_torchvisions_answers() -> None:
    theirs = torchvision.models.wide_resnet101_2(num_classes=7).eval()
    task = Task("wide_resnet101_2", 7, options=(("norm", "bn-running"), ("stem", "imagenet")))
    ours = task.build(Slice(), "meta").to_empty(device="cpu").eval()
    load_pretrained(task, ours, theirs.state_dict())
    images = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(ours(images)[-1], theirs(images))


def test_pretrained_bottlenecks_leave_nothing_but_heads_and_steps_as_drawn() -> None:
    theirs = build("test-bottleneck", 1000, norm="bn-running").state_dict()
    options = (("norm", "bn-running"), ("steps", "learnable"))
    task = Task("test-bottleneck", 10, options=options)
    net = task.build(Slice(exits=(2, 5)))
    load_pretrained(task, net, theirs)
    drawn = {
        n for n, t in net.state_dict().items() if n not in theirs or t.shape != theirs[n].shape
    }
    assert {name.split(".")[0] for name in drawn if not name.endswith(".step")} == {"exits", "fc"}
    assert len([name for name in drawn if name.endswith(".step")]) == SMALL.units
    assert all(torch.equal(net.state_dict()[n], theirs[n]) for n in theirs.keys() - drawn)


@pytest.mark.parametrize("name", RESNETS)
@pytest.mark.parametrize("stem", ["cifar", "cifar-pool", "imagenet"])
def test_digits_of_one_channel_and_8x8_pixels_pass(name: str, stem: str) -> None:
    net = build(name, 10, in_channels=1, slice=Slice(width=0.25, exits=(2, 3)), stem=stem)
    assert [logits.shape for logits in net(torch.randn(4, 1, 8, 8))] == [(4, 10), (4, 10)]


@pytest.mark.parametrize("head", ["conv", "pool", "attention"])
def test_an_exit_can_follow_any_block(head: str) -> None:
    exits = tuple(range(1, 10))
    net = build("resnet20", 10, slice=Slice(exits=exits), head=head)
    assert len(net(torch.randn(2, 3, 16, 16))) == 9
    assert list(net.exits) == [str(unit) for unit in exits[:-1]]


@pytest.mark.parametrize("width", [1.0, 0.3])
@pytest.mark.parametrize(("channels", "size"), [(3, 32), (1, 8), (1, 28), (3, 1)])
def test_attention_heads_take_images_of_any_size(width: float, channels: int, size: int) -> None:
    """Of 28 pixels the third stage has seven, which are halved to four and brought back."""
    held = Slice(width, exits=(2, 4, 6, 8))
    net = build("resnet18", 10, channels, held, head="attention")
    found = net(torch.randn(3, channels, size, size))
    assert [logits.shape for logits in found] == [(3, 10)] * 4


def test_an_attention_head_doubles_its_channels_up_to_the_last_stage_s() -> None:
    net: Any = build("resnet18", 10, slice=Slice(0.5, exits=(1, 4, 6, 7, 8)), head="attention")
    widths = {
        unit: [conv.pointwise2.out_channels for conv in (head.attention, *head.convs)]
        for unit, head in net.exits.items()
    }
    assert widths == {"1": [32, 64, 128, 256], "4": [64, 128, 256], "6": [128, 256], "7": [256]}
    assert all(head.fc.in_features == 256 for head in net.exits.values())


def test_an_attention_head_masks_what_it_reads() -> None:
    """A masked last norm gives sigmoid(0), a half, for all features that the head reads."""
    head = AttentionHead((64,), 10, nn.BatchNorm2d, nn.Identity())
    features = torch.randn(4, 64, 5, 5)
    nn.init.zeros_(head.attention_norm.weight)  # type: ignore[arg-type]
    torch.testing.assert_close(head(features), head.fc(features.mean((2, 3)) / 2))


def test_a_network_without_attention_heads_names_those_that_it_has() -> None:
    with pytest.raises(ValueError, match=r"unknown exit head 'attention'; choose from conv, pool$"):
        build("efficientnet_b4", 10, slice=Slice(exits=(5,)), device="meta", head="attention")


def test_nothing_behind_the_last_exit_exists() -> None:
    net = build("resnet20", 10, slice=Slice(exits=(4,)))
    held = {name.split(".")[0] for name in net.state_dict()}
    assert held == {"conv1", "bn1", "layer1", "layer2", "exits"}
    assert "layer2.0.conv1.weight" in net.state_dict()
    assert "layer2.1.conv1.weight" not in net.state_dict()


def test_absent_blocks_are_not_built_and_the_others_keep_their_names() -> None:
    net = build("resnet20", 10, slice=Slice(blocks=((0, 2), (0, 1, 2), (1,))))
    held = {".".join(name.split(".")[:2]) for name in net.state_dict() if name.startswith("layer")}
    assert held == {
        "layer1.0", "layer1.2", "layer2.0", "layer2.1", "layer2.2", "layer3.0", "layer3.1",
    }  # fmt: skip


def test_a_skipped_block_that_changes_the_shape_keeps_its_projection_alone() -> None:
    net = build("resnet20", 10, slice=Slice(blocks=((0, 1, 2), (0, 1, 2), ())))
    held = [name for name in net.state_dict() if name.startswith("layer3")]
    assert held == [f"layer3.0.downsample.{name}" for name in ("0.weight", "1.weight", "1.bias")]
    assert net(torch.randn(2, 3, 16, 16))[0].shape == (2, 10)


def test_a_skipped_first_bottleneck_keeps_its_projection_in_stage_1_too() -> None:
    net = build("test-bottleneck", 10, slice=Slice(blocks=((), (1,))))
    held = {name.rpartition(".")[0] for name in net.state_dict() if name.startswith("layer")}
    inner = {f"layer2.1.{name}" for name in ("conv1", "conv2", "conv3", "bn1", "bn2", "bn3")}
    projections = {f"layer{stage}.0.downsample.{part}" for stage in (1, 2) for part in (0, 1)}
    assert held == inner | projections
    assert net(torch.randn(2, 3, 16, 16))[0].shape == (2, 10)


def test_a_width_cuts_stem_inner_and_outer_channels_by_the_share_of_their_stage() -> None:
    net = build("wide_resnet101_2", 10, slice=Slice((0.5, 0.25, 0.5, 1.0)), device="meta")
    shapes = {name: tuple(tensor.shape[:2]) for name, tensor in net.state_dict().items()}
    assert shapes["conv1.weight"] == (32, 3)
    assert shapes["layer1.0.conv1.weight"] == (64, 32)
    assert shapes["layer1.0.downsample.0.weight"] == (128, 32)
    assert shapes["layer2.0.conv1.weight"] == (64, 128)
    assert shapes["layer2.0.conv2.weight"] == (64, 64)
    assert shapes["layer2.0.conv3.weight"] == (128, 64)
    assert shapes["layer4.0.downsample.0.weight"] == (2048, 512)


@pytest.mark.parametrize("name", ["resnet20", "test-bottleneck"])
@pytest.mark.parametrize("shortcut", ["A", "B"])
def test_a_skipped_block_computes_what_a_step_of_zero_computes(name: str, shortcut: str) -> None:
    """Exactly: the branch is gone, the shortcut is the same."""
    kept = ((0, 2), (1,), ())[: 3 if name == "resnet20" else 2]
    options: dict[str, Any] = {"steps": "constant", "shortcut": shortcut, "norm": "bn-running"}
    full = randomised(build(name, 10, **options)).eval()
    part = build(name, 10, slice=Slice(blocks=kept), **options).eval()
    part.load_state_dict(extract(full.state_dict(), slice_map(full, part)))
    held = part.state_dict()
    steps = [key for key in full.state_dict() if key.endswith("step")]
    images = torch.randn(2, 3, 16, 16)
    assert not torch.equal(part(images)[0], full(images)[0])
    full.load_state_dict({k: torch.zeros(()) for k in steps if k not in held}, strict=False)
    assert len([key for key in steps if key in held]) == sum(map(len, kept))
    assert torch.equal(part(images)[0], full(images)[0])


@pytest.mark.parametrize("kind", [BasicBlock, Bottleneck])
def test_a_step_size_multiplies_the_branch_and_not_the_shortcut(
    kind: type[BasicBlock | Bottleneck],
) -> None:
    channels = Channels(full_in=4, full_out=4, in_=4, inner=6, out=4)
    norm = torch.nn.BatchNorm2d
    block = kind(channels, 1, None, norm, torch.nn.Identity(), "learnable").eval()
    assert isinstance(block.step, torch.nn.Parameter)
    images = torch.rand(2, 4, 5, 5) + 100  # so large that the last ReLU changes nothing
    branch = block(images) - images
    with torch.no_grad():
        block.step.fill_(0.25)
    torch.testing.assert_close(block(images) - images, 0.25 * branch, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("head", ["conv", "pool"])
@pytest.mark.parametrize("scaler", ["none", "always"])
@pytest.mark.parametrize("kept", [None, ((1,), (0,)), ((), ())])
def test_every_parameter_of_a_slice_of_bottlenecks_gets_a_gradient(
    head: str, scaler: str, kept: tuple[tuple[int, ...], ...] | None
) -> None:
    held = Slice(0.5, blocks=kept, exits=(2, 4, 5))
    net = build(
        "test-bottleneck", 10, slice=held, head=head, scaler=scaler, steps="learnable", norm="gn"
    )
    assert_all_have_gradients(net, torch.randn(4, 3, 16, 16))


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("kept", [None, ((0, 2), (0,)), ((1,), (1,))])
def test_a_slice_of_bottlenecks_computes_what_the_masked_network_computes(
    window: Any, kept: tuple[tuple[int, ...], ...] | None
) -> None:
    held = Slice((0.5, 0.75), blocks=kept, exits=(2, 5), rounding="ceil")
    assert_slice_equals_masked_full("test-bottleneck", held, Window(window, 3), (2, 4, 5))


@pytest.mark.parametrize("norm", ["bn", "bn-running", "bn-static"])
@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_a_slice_computes_what_the_masked_network_computes(
    norm: NormKind, data: st.DataObject
) -> None:
    exits = data.draw(st.sets(st.integers(1, 9), min_size=1).map(lambda s: tuple(sorted(s))))
    kept = st.lists(st.booleans(), min_size=3, max_size=3).map(
        lambda flags: tuple(i for i, flag in enumerate(flags) if flag)
    )
    width = st.sampled_from([0.3, 0.5, 0.75, 1.0])
    held = Slice(
        width=data.draw(width | st.tuples(width, width, width)),
        blocks=data.draw(st.none() | st.tuples(kept, kept, kept)),
        exits=exits,
    )
    window = Window(data.draw(st.sampled_from(WINDOWS)), data.draw(st.integers(0, 99)))
    head = data.draw(st.sampled_from(["conv", "pool", "attention"]))
    assert_slice_equals_masked_full(
        "resnet20", held, window, tuple(range(1, 10)), norm=norm, head=head
    )


@pytest.mark.parametrize("width", [0.25, 0.5, 0.75])
def test_group_norm_allows_slices_of_whole_groups(width: float) -> None:
    held = Slice(width=width, exits=(5, 8))
    assert_slice_equals_masked_full("resnet18", held, Window(), (3, 5, 8), norm="gn")


@pytest.mark.parametrize("width", [0.5, 0.6, 0.75])  # wide enough that norms alone mask the rest
def test_option_a_slices_meet_the_channels_they_meet_in_the_full_network(width: float) -> None:
    held = Slice(width=width, exits=(4, 9))
    assert_slice_equals_masked_full("resnet20", held, Window(), (4, 9), shortcut="A")


@pytest.mark.parametrize("name", RESNETS)
def test_every_residual_network_computes_its_masked_network(name: str) -> None:
    held = Slice(width=0.5, exits=(3, 7))
    assert_slice_equals_masked_full(name, held, Window("random", 3), (3, 7, 8))


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_parameter_of_a_slice_gets_a_gradient(data: st.DataObject) -> None:
    exits = data.draw(st.sets(st.integers(1, 8), min_size=1).map(lambda s: tuple(sorted(s))))
    blocks = st.sampled_from([(), (0,), (1,), (0, 1)])
    held = Slice(
        width=data.draw(st.sampled_from([0.1, 0.25])),
        blocks=data.draw(st.none() | st.tuples(blocks, blocks, blocks, blocks)),
        exits=exits,
    )
    norm = data.draw(st.sampled_from(["bn", "bn-running", "bn-static", "gn"]))
    scaler = data.draw(st.sampled_from(["none", "train", "always"]))
    net = build("resnet18", 10, slice=held, norm=norm, scaler=scaler)
    logits = net(torch.randn(8, 3, 16, 16))
    torch.stack([F.cross_entropy(each, torch.arange(8)) for each in logits]).sum().backward()
    idle = [name for name, tensor in net.named_parameters() if tensor.grad is None]
    assert idle == []


@pytest.mark.parametrize(("scaler", "training", "answers"), [
    ("none", True, 1.0), ("train", True, 2.0), ("train", False, 1.0), ("always", False, 2.0),
])  # fmt: skip
def test_the_scaler_divides_by_the_width_share(scaler: str, training: bool, answers: float) -> None:
    net = build("resnet20", 10, slice=Slice(width=0.5), scaler=scaler).train(training)
    assert torch.equal(net.scale(torch.ones(3)), torch.full((3,), answers))  # type: ignore[operator]


def test_training_with_static_norms_never_moves_their_statistics() -> None:
    net = build("resnet20", 10, norm="bn-static").train()
    statistics = {k: v.clone() for k, v in net.state_dict().items() if "running" in k}
    images = torch.randn(8, 3, 16, 16)
    net(images)
    assert all(torch.equal(net.state_dict()[k], v) for k, v in statistics.items())


def test_static_norms_gather_the_mean_over_batches_and_use_it_at_test_time() -> None:
    norm = StaticBatchNorm2d(1).train()
    norm.gathering = True
    for value in (1.0, 2.0, 6.0):
        norm(torch.tensor([value - 1, value + 1]).reshape(2, 1, 1, 1))
    assert norm.running_mean is not None
    torch.testing.assert_close(norm.running_mean, torch.tensor([3.0]))
    torch.testing.assert_close(norm.eval()(torch.full((1, 1, 1, 1), 3.0)).item(), 0.0)


def test_batch_norm_without_statistics_has_none_to_send() -> None:
    assert not any("running" in name for name in build("resnet20", 10).state_dict())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"norm": "ln"}, "unknown norm 'ln'; choose from bn, bn-running, bn-static, gn"),
        ({"stem": "big"}, "unknown stem 'big'; choose from cifar, cifar-pool, imagenet"),
        ({"shortcut": "C"}, "unknown shortcut 'C'; choose from A, B"),
        ({"scaler": "on"}, "unknown scaler 'on'; choose from none, train, always"),
        ({"head": "mlp"}, "unknown exit head 'mlp'; choose from conv, pool"),
        ({"depth": 3}, "unknown option 'depth' of resnet20; choose from head, norm, scaler"),
    ],
)
def test_an_unknown_option_is_an_error_with_the_choices(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build("resnet20", 10, slice=Slice(width=0.5, exits=(3, 9)), **options)


def test_an_unknown_model_is_an_error_with_the_choices() -> None:
    with pytest.raises(ValueError, match=r"unknown model 'vgg'; choose from .*resnet110, resnet18"):
        build("vgg", 10)


@pytest.mark.parametrize(
    ("held", "message"),
    [
        (Slice(width=(1.0, 0.5)), "one share for each of 3 stages"),
        (Slice(blocks=((0,), (0,))), "one tuple for each of 3 stages"),
        (Slice(blocks=((0,), (0, 3), ())), r"stage 2 has blocks 0 to 2; blocks \[3\]"),
        (Slice(exits=(3, 10)), r"resnet20 has units 1 to 9; exits \(3, 10\) are not there"),
        (Slice(exits=(0, 3)), r"resnet20 has units 1 to 9; exits \(0, 3\) are not there"),
    ],
)
def test_a_slice_that_the_network_does_not_have_is_refused(held: Slice, message: str) -> None:
    with pytest.raises(SliceError, match=message):
        build("resnet20", 10, slice=held)
