"""Losses worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from training.shared_losses import cross_entropy, masked_cross_entropy, present_classes


def test_cross_entropy_is_of_the_last_exit() -> None:
    logits = [torch.tensor([[9.0, 0.0]]), torch.tensor([[0.0, 1.0]])]
    loss = cross_entropy(logits, torch.tensor([0]))
    assert float(loss) == pytest.approx(math.log(1 + math.e))


def test_masked_cross_entropy_sets_absent_logits_to_zero() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
    present = torch.tensor([True, False, True])
    loss = masked_cross_entropy([logits], torch.tensor([2]), present=present)
    total = math.e + 1 + math.e**3
    assert loss.item() == pytest.approx(math.log(total) - 3)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient[0].tolist() == pytest.approx([math.e / total, 0, math.e**3 / total - 1])


def test_the_classes_that_are_present_are_those_of_any_label() -> None:
    assert present_classes(torch.tensor([0, 2, 2]), 4).tolist() == [True, False, True, False]
