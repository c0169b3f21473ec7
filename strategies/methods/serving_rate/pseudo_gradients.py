"""The server's step along clients' pseudo-gradients: Algorithm 1 of CIS, line 12.

The step is w + rate * sum of c (w_client - w), where c is an update's weight. With m the weighted
mean over the clients that held a tensor, and C the sum of their weights, this is w + rate * C (m -
w): so any aggregator that makes a mean can be the inner one. Running statistics are not weights:
they are set to the mean itself.
"""

from __future__ import annotations

import math

from torch import Tensor

from models.slicing import State, is_running_statistic
from strategies.aggregation.norm_bounds import Inner
from strategies.aggregation.update import Update


class PseudoGradients:
    """Wraps an aggregator that makes weighted means, and steps towards them."""

    def __init__(self, inner: Inner, rate: float) -> None:
        self.inner, self.rate = inner, rate
        self._weights: dict[str, list[float]] = {}
        """Weights of the updates that hold each tensor of the global state."""

    def check(self, update: Update) -> None:
        """Raise `RefusedUpdateError` for an update that the inner aggregator would refuse."""
        self.inner.check(update)

    def add(self, update: Update) -> None:
        """Fold in one client's state, or raise `RefusedUpdateError` and change nothing."""
        self.inner.add(update)
        for region in update.map.regions.values():
            self._weights.setdefault(region.source, []).append(update.weight)

    def result(self, previous: State) -> dict[str, Tensor]:
        """Return the state after the step; tensors that no client held stay unchanged."""
        mean = self.inner.result(previous)
        return {name: self._stepped(name, mean[name], old) for name, old in previous.items()}

    def _stepped(self, name: str, mean: Tensor, old: Tensor) -> Tensor:
        weights = self._weights.get(name)
        if weights is None or is_running_statistic(name) or not old.dtype.is_floating_point:
            return mean
        length = self.rate * math.fsum(weights)  # the same in any order
        return old + length * (mean - old)
