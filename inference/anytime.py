"""Anytime prediction (ScaleFL, Algorithm 4): an answer at each exit, the best one last."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from models.families import SlicedNetwork


@dataclass(frozen=True, eq=False)
class Answers:
    """One answer for each sample of a batch."""

    classes: Tensor
    """int64 [n]."""
    exits: Tensor
    """int64 [n]: the exit that answered, counted from 0 through the network's exits."""
    confidence: Tensor
    """float32 [n]: the largest softmax score."""


@torch.inference_mode()
def anytime(net: SlicedNetwork, x: Tensor) -> Iterator[Answers]:
    """Yield each exit's answers in order; nothing is computed before it is asked for."""
    for number, logits in enumerate(net.walk(x)):
        confidence, classes = logits.float().softmax(-1).max(-1)
        yield Answers(classes, torch.full_like(classes, number), confidence)
