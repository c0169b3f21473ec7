"""Vision transformers: torchvision's numbers, and slices that are smaller ViTs of their weights."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchvision
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torchvision.models import VisionTransformer

from models import Slice, SlicedNetwork, SliceError, Task, Window, build, extract, slice_map
from models.loading import PretrainedError, load_pretrained
from models.slicing import is_step_size
from models.vit import Block, Sizes
from strategies.levels.cost import cost
from tests.support.toy_networks import (
    assert_a_walk_goes_on_with_those_kept,
    assert_untrained_slices_change_nothing,
)

Network = TypeVar("Network", bound=nn.Module)
IMAGES = torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(3))
KEPT = st.none() | st.sets(st.integers(1, 3)).map(lambda blocks: ((0, *sorted(blocks)),))
EXITS = st.none() | st.sets(st.integers(1, 4), min_size=1).map(lambda units: tuple(sorted(units)))
SLICES = st.builds(Slice, st.sampled_from([0.1, 0.3, 0.5, 0.7, 1.0]), KEPT, EXITS,
                   st.sampled_from(["floor", "ceil"]))  # fmt: skip


def randomised(net: Network, seed: int = 0) -> Network:
    """No parameter at a special value: heads, norms and step sizes too are random."""
    chance = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in net.parameters():
            tensor.copy_(torch.randn(tensor.shape, generator=chance) * 0.2)
    return net


def micro(slice: Slice = Slice(), **options: Any) -> SlicedNetwork:  # noqa: B008  (frozen)
    return randomised(build("vit-micro", 5, slice=slice, **options)).eval()


def tiny_of_torchvision(num_classes: int = 1000) -> VisionTransformer:
    return VisionTransformer(
        image_size=32,
        patch_size=4,
        num_layers=6,
        num_heads=3,
        hidden_dim=192,
        mlp_dim=768,
        num_classes=num_classes,
    )


def part_of(full: SlicedNetwork, slice: Slice, **options: Any) -> SlicedNetwork:
    part = build("vit-micro", 5, slice=slice, **options).eval()
    part.load_state_dict(extract(full.state_dict(), slice_map(full, part)))
    return part


# Equal to torchvision


def test_vit_b_16_has_torchvisions_names_and_shapes_and_no_others() -> None:
    with torch.device("meta"):
        theirs = torchvision.models.vit_b_16().state_dict()
    ours = build("vit_b_16", 1000, device="meta").state_dict()
    assert {n: t.shape for n, t in ours.items()} == {n: t.shape for n, t in theirs.items()}


@pytest.mark.parametrize("training", [True, False])
def test_answers_are_torchvisions(training: bool) -> None:
    """Also without gradients, where torchvision's attention takes another path."""
    theirs = randomised(tiny_of_torchvision(7)).train(training)
    ours = build("vit-tiny", 7).train(training)
    ours.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(ours(IMAGES), [theirs(IMAGES)])
    with torch.no_grad():
        torch.testing.assert_close(ours(IMAGES), [theirs(IMAGES)])


def test_weights_are_drawn_as_torchvision_draws_them() -> None:
    torch.manual_seed(0)
    theirs, ours = tiny_of_torchvision(10).state_dict(), build("vit-tiny", 10).state_dict()
    for name, tensor in theirs.items():
        spread = tensor.std().item()
        assert ours[name].std().item() == pytest.approx(spread, rel=0.2), name
        assert abs(ours[name].mean().item() - tensor.mean().item()) <= 0.3 * spread, name


def test_macs_of_vit_b_16_are_those_worked_out_by_hand() -> None:
    tokens, dim, hidden = 14 * 14 + 1, 768, 3072
    patches = 14 * 14 * dim * 3 * 16 * 16
    matrices = 12 * tokens * (4 * dim * dim + 2 * dim * hidden)  # q, k, v, out; the MLP
    attention = 12 * 2 * tokens * tokens * dim  # scores, and the mean of the values
    found = cost(Task("vit_b_16", 1000, image_size=32))  # which is resized
    assert found.macs == patches + matrices + attention + dim * 1000 == 17_563_828_224
    assert found.parameters == 86_567_656  # as torchvision says


def test_images_of_another_size_are_resized_and_no_pixel_is_smoothed_away() -> None:
    net = micro()
    small = torch.rand(2, 3, 8, 8)
    large = F.interpolate(small, (32, 32), mode="bilinear", antialias=False)
    torch.testing.assert_close(net(small), net(large))
    one = build("vit-micro", 5, in_channels=1, image_size=8, patch=2)
    assert one.get_parameter("encoder.pos_embedding").shape == (1, 17, 64)
    assert one(torch.rand(2, 1, 8, 8))[0].shape == (2, 5)


# Slices


@pytest.mark.parametrize("heads", ["narrow", "fewer"])
@settings(max_examples=15, deadline=None)
@given(held=SLICES)
def test_a_slice_keeps_the_names_and_nothing_of_it_is_outside_the_full_network(
    heads: str, held: Slice
) -> None:
    """And each parameter that it has, gets a gradient."""
    full = micro(Slice(exits=(1, 2, 3, 4)), heads=heads, steps="learnable")
    part = part_of(full, held, heads=heads, steps="learnable").train()
    assert part.state_dict().keys() <= full.state_dict().keys()
    logits = part(IMAGES)
    assert [each.shape for each in logits] == [(3, 5)] * len(held.exits or (4,))
    torch.stack([F.cross_entropy(each, torch.arange(3)) for each in logits]).sum().backward()
    idle = [n for n, p in part.named_parameters() if p.grad is None or not p.grad.any()]
    assert idle == []


def test_narrow_heads_keep_the_first_part_of_each_in_q_k_and_v_and_the_stream() -> None:
    full, part = (build("vit-micro", 5, slice=Slice(width), device="meta") for width in (1, 0.5))
    regions = slice_map(full, part).regions
    stream = [head * 16 + k for head in range(4) for k in range(8)]
    rows = [third * 64 + k for third in range(3) for k in stream]
    places = list(range(65))

    def positions(name: str) -> list[list[int]]:
        region = regions[name]
        return [np.arange(n)[i].tolist() for n, i in zip(region.full, region.axes, strict=True)]

    layer = "encoder.layers.encoder_layer_2"
    assert positions(f"{layer}.self_attention.in_proj_weight") == [rows, stream]
    assert positions(f"{layer}.self_attention.in_proj_bias") == [rows]
    assert positions(f"{layer}.self_attention.out_proj.weight") == [stream, stream]
    assert positions(f"{layer}.mlp.0.weight") == [list(range(128)), stream]
    assert positions(f"{layer}.mlp.3.weight") == [stream, list(range(128))]
    assert positions(f"{layer}.ln_2.bias") == positions("encoder.ln.weight") == [stream]
    assert positions("class_token") == [[0], [0], stream]
    assert positions("encoder.pos_embedding") == [[0], places, stream]
    assert positions("conv_proj.weight")[:2] == [stream, [0, 1, 2]]
    assert positions("heads.head.weight") == [[0, 1, 2, 3, 4], stream]


def test_fewer_heads_are_the_first_ones_of_the_full_network() -> None:
    full = micro(heads="fewer")
    part = part_of(full, Slice(0.5), heads="fewer")
    name = "encoder.layers.encoder_layer_1.self_attention.in_proj_weight"
    heads = full.state_dict()[name].view(3, 4, 16, 64)  # q, k and v of each head
    assert torch.equal(part.state_dict()[name].view(3, 2, 16, 32), heads[:, :2, :, :32])


@pytest.mark.parametrize("heads", ["narrow", "fewer"])
def test_a_slice_by_width_is_torchvisions_vit_of_that_size(heads: str) -> None:
    full = micro(heads=heads)
    part = part_of(full, Slice(0.5), heads=heads)
    theirs = VisionTransformer(32, 4, 4, 2 if heads == "fewer" else 4, 32, 128, num_classes=5)
    theirs.load_state_dict(part.state_dict())
    torch.testing.assert_close(part(IMAGES), [theirs.eval()(IMAGES)])


def test_absent_blocks_are_not_built_and_cost_nothing() -> None:
    task, held = Task("vit-micro", 5), Slice(blocks=((0, 3),))
    names = {
        name.split(".")[2] for name in task.build(held, "meta").state_dict() if "layer_" in name
    }
    assert names == {"encoder_layer_0", "encoder_layer_3"}
    block = 4 * 64 * 64 + 4 * 64 + 2 * 64 * 256 + 256 + 64 + 4 * 64
    macs = 65 * (4 * 64 * 64 + 2 * 64 * 256) + 2 * 65 * 65 * 64
    whole, part = cost(task), cost(task, held)
    assert (whole.parameters - part.parameters, whole.macs - part.macs) == (2 * block, 2 * macs)
    behind = task.build(Slice(exits=(2,)), "meta").state_dict()
    assert not any(name.startswith(("heads", "encoder.ln")) or "layer_2" in name for name in behind)


@pytest.mark.parametrize("kept", [(0, 3), (1, 2), (3,)])
def test_a_skipped_block_computes_what_steps_of_zero_compute(kept: tuple[int, ...]) -> None:
    full = micro(steps="constant")
    part = part_of(full, Slice(blocks=(kept,)), steps="constant")
    steps = [name for name in full.state_dict() if is_step_size(name)]
    assert len(steps) == 8
    skipped = {name: torch.zeros(()) for name in steps if name not in part.state_dict()}
    assert not torch.equal(part(IMAGES)[0], full(IMAGES)[0])
    full.load_state_dict(skipped, strict=False)
    assert torch.equal(part(IMAGES)[0], full(IMAGES)[0])


def test_each_step_size_multiplies_its_own_branch() -> None:
    """NeFL, Eq. (3): x + s1 SA(LN(x)), then x + s2 MLP(LN(x))."""
    block = randomised(Block(Sizes(2, 4, 6, (4, 4)), 0.0, "learnable"))
    x = torch.randn(2, 3, 8)
    with torch.no_grad():
        assert block.attention_step is not None
        assert block.mlp_step is not None
        block.attention_step.fill_(0.5)
        block.mlp_step.fill_(-2.0)
        after = x + 0.5 * block.self_attention(block.ln_1(x))
        torch.testing.assert_close(block(x), after - 2.0 * block.mlp(block.ln_2(after)))


def test_step_sizes_start_at_one_and_change_nothing_there() -> None:
    torch.manual_seed(1)
    plain = micro()
    learnable = build("vit-micro", 5, steps="learnable").eval()
    learnable.load_state_dict(plain.state_dict(), strict=False)
    assert torch.equal(plain(IMAGES)[0], learnable(IMAGES)[0])


def test_dropout_is_for_training_alone() -> None:
    net = micro(dropout=0.5)
    assert torch.equal(net(IMAGES)[0], net(IMAGES)[0])
    assert not torch.equal(net.train()(IMAGES)[0], net(IMAGES)[0])


def test_a_walk_goes_on_with_those_that_are_kept() -> None:
    assert_a_walk_goes_on_with_those_kept(micro(Slice(0.5, exits=(1, 3, 4))), IMAGES)


@pytest.mark.parametrize("heads", ["narrow", "fewer"])
def test_untrained_slices_change_nothing(heads: str) -> None:
    slices = [Slice(), Slice(0.5, exits=(2, 4)), Slice(0.3, ((0, 2),), (3,)), Slice(0.7)]
    assert_untrained_slices_change_nothing(
        "vit-micro", (2, 3, 4), slices, heads=heads, steps="learnable"
    )


def test_another_window_is_taken_in_each_narrow_head() -> None:
    full, part = (build("vit-micro", 5, slice=Slice(width), device="meta") for width in (1, 0.25))
    region = slice_map(full, part, Window("lower-right")).regions["encoder.ln.weight"]
    assert np.arange(64)[region.axes[0]].tolist() == [
        h * 16 + k for h in range(4) for k in range(12, 16)
    ]


@pytest.mark.parametrize(
    ("slice", "message"),
    [
        (Slice((0.5, 1.0)), "expected one share for each of 1 stages"),
        (Slice(blocks=((0, 4),)), r"stage 1 has blocks 0 to 3; blocks \[4\] are not there"),
        (Slice(blocks=((3,),), exits=(2,)), "expected a block, for the class token reads through"),
        (Slice(exits=(5,)), "vit-micro has units 1 to 4"),
    ],
)
def test_a_slice_that_a_vit_does_not_have_is_refused(slice: Slice, message: str) -> None:
    with pytest.raises(SliceError, match=message):
        build("vit-micro", 5, slice=slice)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": "no"}, "unknown heads 'no'; choose from narrow, fewer"),
        ({"steps": "no"}, "unknown steps 'no'; choose from none, learnable, constant"),
        ({"dropout": 1}, "dropout is 1: expected a share, less than 1"),
        ({"dropout": "much"}, "dropout is much: expected a share, less than 1"),
        ({"patch": 0}, "patch is 0: expected a whole number, at least 1"),
        ({"image_size": "big"}, "image_size is 'big': expected a whole number, at least 1"),
        ({"image_size": 30}, "image_size is 30: expected a multiple of patch, 4"),
        ({"norm": "bn"}, "'norm' of vit-micro; choose from dropout, heads, image_size, patch, st"),
    ],
)
def test_a_wrong_option_is_an_error_with_what_was_expected(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        build("vit-micro", 5, **options)


# Pre-trained weights


def as_published(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The names in torchvision's files, of before its MLPs were sequences."""
    return {
        name.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2."): tensor
        for name, tensor in weights.items()
    }


@pytest.mark.parametrize("published", [True, False])
def test_no_tensor_of_a_pretrained_vit_is_dropped(published: bool) -> None:
    weights = dict(randomised(tiny_of_torchvision()).state_dict())
    task = Task("vit-tiny", 10, options=(("steps", "learnable"),))
    net = task.build(Slice(exits=(2, 6)))
    drawn = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    load_pretrained(task, net, as_published(weights) if published else weights)
    state = net.state_dict()
    heads = {"heads.head.weight", "heads.head.bias"}
    left = state.keys() - weights.keys() | heads
    assert all(torch.equal(state[name], weights[name]) for name in weights.keys() - heads)
    assert all(torch.equal(state[name], drawn[name]) for name in left)
    assert {n for n in left if not n.startswith("exits.2.") and not is_step_size(n)} == heads


def test_a_pretrained_vit_answers_as_torchvisions_and_its_slices_are_parts_of_it() -> None:
    theirs = randomised(tiny_of_torchvision(7)).eval()
    task = Task("vit-tiny", 7)
    net = task.build(Slice()).eval()
    load_pretrained(task, net, theirs.state_dict())
    torch.testing.assert_close(net(IMAGES), [theirs(IMAGES)])
    part = task.build(Slice(2 / 3, ((0, 5),)), "meta")
    cut = extract(theirs.state_dict(), slice_map(net, part))
    name = "encoder.layers.encoder_layer_5.self_attention.in_proj_bias"
    whole = theirs.state_dict()[name].view(3, 3, 64)
    assert torch.equal(cut[name].view(3, 3, 42), whole[:, :, :42])


def test_weights_for_images_of_another_size_are_refused_by_name() -> None:
    weights = build("vit-micro", 5, image_size=16).state_dict()
    task = Task("vit-micro", 5)
    message = r"pos_embedding has shape \(1, 17, 64\), expected \(1, 65, 64\)"
    with pytest.raises(PretrainedError, match=message):
        load_pretrained(task, task.build(Slice()), weights)
