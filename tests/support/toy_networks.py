"""Small networks and helpers that tests share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models import (
    Slice,
    SlicedNetwork,
    Task,
    Window,
    build,
    declare_parts,
    extract,
    family,
    slice_map,
)
from models.masking import randomised, zeros_outside
from strategies.network_checks import (
    WINDOWS,
    changed_by_untrained,
    check_walk_of_those_kept,
    without_gradient,
)

__all__ = ["WINDOWS", "randomised", "zeros_outside"]


class Dense(nn.Module):
    """A biased network whose second layer reads two concatenated feature maps."""

    def __init__(self, slice: Slice = Slice()) -> None:  # noqa: B008  (frozen)
        super().__init__()
        first, second = slice.channels(4), slice.channels(6)
        self.one = nn.Conv2d(3, first, 3, padding=1)
        self.two = nn.Conv2d(first, second, 3, padding=1)
        self.join = nn.Conv2d(first + second, slice.channels(8), 1)
        declare_parts(self.join, "weight", 1, (first, second))
        self.fc = nn.Linear(slice.channels(8), 5)

    def forward(self, x: Tensor) -> Tensor:
        one = F.relu(self.one(x))
        two = F.relu(self.two(one))
        joined = F.relu(self.join(torch.cat((one, two), 1)))
        logits: Tensor = self.fc(joined.mean((2, 3)))
        return logits


class Attention(nn.Module):
    """Fused q, k, v with heads that shrink: one axis made of 3 x heads parts."""

    heads = 2

    def __init__(self, slice: Slice = Slice()) -> None:  # noqa: B008  (frozen)
        super().__init__()
        self.size = slice.channels(4)
        inner = self.heads * self.size
        self.embed = nn.Linear(3, inner)
        self.qkv = nn.Linear(inner, 3 * inner)
        self.out = nn.Linear(inner, 5)
        heads = (self.size,) * self.heads
        for layer, axis, sizes in (
            (self.embed, 0, heads),
            (self.qkv, 0, heads * 3),
            (self.qkv, 1, heads),
            (self.out, 1, heads),
        ):
            declare_parts(layer, "weight", axis, sizes)
            if axis == 0:
                declare_parts(layer, "bias", axis, sizes)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (self.heads, self.size)).transpose(-2, -3)
            for part in self.qkv(self.embed(x)).chunk(3, -1)
        )
        mixed = (q @ k.transpose(-1, -2)).tanh() @ v  # no softmax: absent channels add nothing
        logits: Tensor = self.out(mixed.transpose(-2, -3).flatten(-2))
        return logits


def assert_slice_equals_masked_full(
    name: str,
    held: Slice,
    window: Window,
    full_exits: tuple[int, ...],
    size: int = 16,
    **options: Any,
) -> None:
    """Give the slice its part of a full network, and compare with that network masked.

    A channel is masked by its norm's weight and bias, both zero; a block by all of its norms'. The
    layers of squeeze-and-excitation have no norm: their weights are masked.
    """
    full = build(name, 10, slice=Slice(exits=full_exits), **options)
    randomised(full)
    part = build(name, 10, slice=held, **options)
    mapping = slice_map(full, part, window, bank_of=lambda name: None)
    part.load_state_dict(extract(full.state_dict(), mapping))
    masking = [
        key
        for key, tensor in full.named_parameters()
        if tensor.ndim == 1 or key.endswith("fc1.weight")
    ]
    full.load_state_dict(zeros_outside(full.state_dict(), mapping, *masking))
    images = torch.randn_like(Task(name, image_size=size, length=size).input(4))
    with torch.no_grad():
        answers = dict(zip(full_exits, full.eval()(images), strict=True))
        for unit, logits in zip(held.exits or full_exits[-1:], part.eval()(images), strict=True):
            torch.testing.assert_close(logits, answers[unit], rtol=1e-4, atol=1e-4)


def assert_a_walk_goes_on_with_those_kept(net: SlicedNetwork, images: Tensor) -> None:
    """Send back a mask at each exit: the logits are those of a walk of the kept samples alone."""
    check_walk_of_those_kept(net, images)


def assert_all_have_gradients(net: SlicedNetwork, images: Tensor) -> None:
    """Train on all exits at once: no parameter is left without a gradient."""
    assert without_gradient(net, images) == []


def assert_like_blocks_behind_each_first(name: str, held: Slice, **options: Any) -> None:
    """A stage's blocks but the first have the same tensors: one can stand for another (FedFA)."""
    state = build(name, 10, slice=held, device="meta", **options).state_dict()
    for stage, blocks in enumerate(held.blocks or map(range, family(name).stages), 1):
        tensors = []
        for block in blocks:
            prefix = family(name).blocks.format(stage=stage, block=block)
            own = {
                n.removeprefix(prefix): t.shape for n, t in state.items() if n.startswith(prefix)
            }
            assert own, prefix
            tensors.append(own)
        assert all(each == tensors[1] for each in tensors[2:]), stage


def assert_untrained_slices_change_nothing(
    name: str, exits: tuple[int, ...], slices: Sequence[Slice], **options: Any
) -> None:
    """Cut slices, each through another window, do not train, average: no bit has changed."""
    full = build(name, 10, slice=Slice(exits=exits), **options)
    parts = [build(name, 10, slice=held, device="meta", **options) for held in slices]
    assert changed_by_untrained(full, parts) == []


def state_of(net: SlicedNetwork) -> dict[str, Tensor]:
    """Return copies of the network's tensors on the CPU, which its next use does not change."""
    return {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in net.state_dict().items()
    }


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
