"""Answers of several exits together: the mean of their logits (DepthFL)."""

from __future__ import annotations

from torch import Tensor

from models.families import SlicedNetwork, Walk, going_on


class RunningEnsemble(SlicedNetwork):
    """Answers at each exit of a network with the mean of the logits up to it."""

    def __init__(self, net: SlicedNetwork) -> None:
        super().__init__()
        self.net = net

    def walk(self, x: Tensor) -> Walk:
        walk = self.net.walk(x)
        total, exits = next(walk), 1
        while True:
            kept = yield total / exits
            try:
                logits = walk.send(kept)
            except StopIteration:
                return
            total, exits = going_on(total, kept) + logits, exits + 1


class WholeEnsemble(RunningEnsemble):
    """Answers once, with the mean of the logits of all exits."""

    def walk(self, x: Tensor) -> Walk:
        *_, answer = super().walk(x)
        yield answer
