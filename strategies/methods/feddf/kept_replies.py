"""Keeps the replies that another aggregator folds, on disk, for a server step that runs them.

Bounds stand outside: what they refuse is not kept, and what they shorten is kept shortened.
"""

from __future__ import annotations

from torch import Tensor

from models.slicing import State
from strategies.aggregation.norm_bounds import Inner
from strategies.aggregation.spool import Spool
from strategies.aggregation.update import Update


class Kept:
    """Hands updates on, and keeps those that are taken."""

    def __init__(self, inner: Inner, replies: Spool) -> None:
        self.inner, self.replies = inner, replies

    def check(self, update: Update) -> None:
        """Raise `RefusedUpdateError` for what the inner one refuses."""
        self.inner.check(update)

    def add(self, update: Update) -> None:
        """Fold in one client's update and keep it, or raise `RefusedUpdateError` and do neither."""
        self.inner.add(update)
        self.replies.add(update)

    def result(self, previous: State) -> dict[str, Tensor]:
        """Return what the inner one makes of the updates."""
        return self.inner.result(previous)
