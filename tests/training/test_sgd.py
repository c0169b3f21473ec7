"""SGD: torch's numbers bit for bit, and one momentum for tensors that share memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.support.toy_training import CPU
from training.fitting import SGD

SHAPES = [(3, 4), (5,), ()]


def parts_of(whole: Tensor, *lengths: int) -> list[Tensor]:
    return [whole.detach().narrow(0, 0, length).requires_grad_() for length in lengths]


def test_tensors_that_share_memory_share_momentum_entry_by_entry() -> None:
    whole = nn.Parameter(torch.zeros(4, dtype=torch.float64))
    (part,) = parts_of(whole, 2)
    optimiser = SGD([whole, part], 1.0, replace(CPU, momentum=0.9, weight_decay=0.0))
    reached = []
    for moved in (whole, part, whole):
        moved.grad = torch.ones_like(moved)
        optimiser.step()
        optimiser.zero_grad()
        reached.append(whole.tolist())
    assert reached == [
        pytest.approx([-1.0, -1.0, -1.0, -1.0]),
        pytest.approx([-2.9, -2.9, -1.0, -1.0]),  # 0.9 * 1 + 1
        pytest.approx([-5.61, -5.61, -2.9, -2.9]),  # 0.9 * 1.9 + 1, and 0.9 * 1 + 1
    ]


def test_a_part_of_several_axes_has_its_own_entries_momentum() -> None:
    whole = nn.Parameter(torch.zeros(3, 3))
    corner = whole.detach()[:2, :2].requires_grad_()
    optimiser = SGD([whole, corner], 1.0, replace(CPU, momentum=0.5, weight_decay=0.0))
    whole.grad = torch.arange(9.0).reshape(3, 3)
    optimiser.step()
    optimiser.zero_grad()
    before = whole.detach().clone()
    corner.grad = torch.zeros(2, 2)
    optimiser.step()
    assert (before - whole.detach()).tolist() == [[0.0, 0.5, 0.0], [1.5, 2.0, 0.0], [0.0] * 3]


def test_weight_decay_moves_the_part_that_has_a_gradient_alone() -> None:
    whole = nn.Parameter(torch.ones(4))
    (part,) = parts_of(whole, 1)
    optimiser = SGD([whole, part], 0.5, replace(CPU, momentum=0.0, weight_decay=0.5))
    part.grad = torch.zeros(1)
    optimiser.step()
    assert whole.tolist() == [0.75, 1.0, 1.0, 1.0]


@given(
    momentum=st.sampled_from([0.0, 0.5, 0.9]),
    nesterov=st.booleans(),
    decay=st.sampled_from([0.0, 5e-4, 0.1]),
    given_gradients=st.lists(st.tuples(*[st.booleans()] * 3).filter(any), min_size=1, max_size=6),
)
def test_tensors_of_their_own_move_as_torchs_sgd_moves_them_bit_for_bit(
    momentum: float, nesterov: bool, decay: float, given_gradients: list[tuple[bool, ...]]
) -> None:
    """In each step some have a gradient and some have none."""
    chosen = replace(CPU, momentum=momentum, nesterov=nesterov and momentum > 0, weight_decay=decay)
    chance = torch.Generator().manual_seed(0)
    first = [torch.randn(shape, generator=chance) for shape in SHAPES]
    ours, theirs = ([nn.Parameter(t.clone()) for t in first] for _ in range(2))
    torchs = torch.optim.SGD(
        theirs, 0.05, momentum, weight_decay=decay, nesterov=chosen.nesterov, foreach=True
    )
    own = SGD(ours, 0.05, chosen)
    for step in given_gradients:
        own.zero_grad()
        torchs.zero_grad()
        for one, other, has in zip(ours, theirs, step, strict=True):
            if has:
                one.grad = torch.randn(one.shape, generator=chance)
                other.grad = one.grad.clone()
        own.step()
        torchs.step()
        assert all(torch.equal(*pair) for pair in zip(ours, theirs, strict=True))
