"""Losses on the logits of a slice's exits, and the labels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def cross_entropy(logits: list[Tensor], labels: Tensor) -> Tensor:
    """Return the cross-entropy of the slice's own answer, its last exit."""
    return F.cross_entropy(logits[-1], labels)


def masked_cross_entropy(logits: list[Tensor], labels: Tensor, present: Tensor) -> Tensor:
    """Return the cross-entropy with the logits of absent classes set to 0.

    An absent class gets no gradient, so a client cannot unlearn it (HeteroFL, FedFA).
    """
    return F.cross_entropy(masked(logits[-1], present), labels)


def masked(logits: Tensor, present: Tensor) -> Tensor:
    """Return the logits, with 0 for classes that are not present."""
    return logits.masked_fill(~present.to(logits.device), 0)


def kl_divergence(student: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """Return KL(teacher || student) of softened answers, times T^2, as the batch's mean."""
    targets = F.log_softmax(teacher / temperature, dim=1)
    answers = F.log_softmax(student / temperature, dim=1)
    each = (targets.exp() * (targets - answers)).sum(1)
    return each.mean() * temperature**2


def present_classes(labels: Tensor, num_classes: int) -> Tensor:
    """Return a mask of the classes that occur among the labels."""
    return torch.bincount(labels.flatten(), minlength=num_classes) > 0
