"""Grafts each update before another aggregator folds it (FedFA, Algorithm 2).

Bounds stand outside: a copy of a block is no change that a client has made to the block whose place
it takes.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from models.slicing import State
from strategies.aggregation.norm_bounds import Inner
from strategies.aggregation.update import Update


class Grafted:
    """Hands updates on with the blocks that their architecture lacks."""

    def __init__(self, inner: Inner, graft: Callable[[Update], Update]) -> None:
        self.inner, self.graft = inner, graft

    def check(self, update: Update) -> None:
        """Raise `RefusedUpdateError` where `add` would, and change nothing."""
        update.check_form()
        self.inner.check(self.graft(update))

    def add(self, update: Update) -> None:
        """Fold in one client's state, or raise `RefusedUpdateError` and change nothing."""
        update.check_form()
        self.inner.add(self.graft(update))

    def result(self, previous: State) -> dict[str, Tensor]:
        """Return what the inner one makes of the grafted updates."""
        return self.inner.result(previous)
