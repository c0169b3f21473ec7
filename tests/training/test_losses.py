"""Objectives: losses worked out by hand, and the settings that they are given by name."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from training.losses import cross_entropy, masked_cross_entropy, objective, register


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


def test_an_objective_by_name_knows_the_classes_of_its_client() -> None:
    masked = objective("masked-cross-entropy", torch.tensor([0, 2, 2]), num_classes=3)
    loss = masked([torch.tensor([[1.0, 2.0, 3.0]])], torch.tensor([2]))
    assert float(loss) == pytest.approx(math.log(math.e + 1 + math.e**3) - 3)


def test_a_new_objective_is_one_function_with_settings() -> None:
    @register("weighted-exits")
    def weighted(logits: list[Tensor], labels: Tensor, *, share: float, power: int = 1) -> Tensor:
        return share**power * logits[0].sum()

    labels = torch.tensor([0])
    assert objective("weighted-exits", labels, 2, share=0.5)([torch.ones(1, 4)], labels) == 2
    with pytest.raises(ValueError, match="objective weighted-exits needs the setting 'share'"):
        objective("weighted-exits", labels, 2)
    with pytest.raises(ValueError, match=r"unknown setting 'beta'.*choose from power, share"):
        objective("weighted-exits", labels, 2, beta=1)


def test_an_unknown_objective_is_answered_with_the_choices() -> None:
    with pytest.raises(ValueError, match=r"unknown objective 'mse'; choose from cross-entropy, m"):
        objective("mse", torch.tensor([0]), 2)
