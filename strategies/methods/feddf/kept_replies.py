"""Keeps accepted replies on disk, for a server step that runs their networks.

Bounds wrap this class: replies that they refuse are not kept, and shortened ones are kept
shortened.
"""

from __future__ import annotations

from torch import Tensor

from models.slicing import State
from strategies.aggregation.norm_bounds import Inner
from strategies.aggregation.spool import Spool
from strategies.aggregation.update import Update


class Kept:
    """Passes updates on, and keeps the accepted ones."""

    def __init__(self, inner: Inner, replies: Spool) -> None:
        self.inner, self.replies = inner, replies

    def check(self, update: Update) -> None:
        """Raise `RefusedUpdateError` for an update that the inner aggregator refuses."""
        self.inner.check(update)

    def add(self, update: Update) -> None:
        """Fold in one client's update and keep it, or raise `RefusedUpdateError` and do neither."""
        self.inner.add(update)
        self.replies.add(update)

    def result(self, previous: State) -> dict[str, Tensor]:
        """Return the inner aggregator's result for the updates."""
        return self.inner.result(previous)
