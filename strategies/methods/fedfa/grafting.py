"""Layer grafting (FedFA, Algorithm 2): fills missing blocks with copies of a stage's last block."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor

from models.slicing import State
from strategies.aggregation.norm_bounds import Inner
from strategies.aggregation.update import Update
from strategies.levels.patterns import Kept


def grafted(tensors: Iterable[str], own: Kept, wanted: Kept, blocks: str) -> dict[str, str]:
    """Return the names of a grafted network's tensors, with their sources in the client's own.

    The client holds the first blocks `own` of each stage, and gets the blocks `wanted`. `blocks` is
    the prefix of a block's tensor names, with stages counted from 1.
    """
    found = {name: name for name in tensors}
    for stage, (held, all_of_it) in enumerate(zip(own, wanted, strict=True), 1):
        last = blocks.format(stage=stage, block=held[-1])
        copied = [name for name in found if name.startswith(last)]
        for block in all_of_it[len(held) :]:
            copy = blocks.format(stage=stage, block=block)
            found |= {copy + name.removeprefix(last): name for name in copied}
    return found


class Grafted:
    """Adds the missing blocks to updates before they are averaged."""

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
        """Return the inner aggregator's result for the grafted updates."""
        return self.inner.result(previous)
