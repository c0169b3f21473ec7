"""Layer grafting (FedFA, Algorithm 2): copies of a stage's last block for those that it lacks."""

from __future__ import annotations

from collections.abc import Iterable

from strategies.levels.patterns import Kept


def grafted(tensors: Iterable[str], own: Kept, wanted: Kept, blocks: str) -> dict[str, str]:
    """Return the tensors of a grafted network, by name, and which of the network's own each is.

    It has the blocks `own` of each stage, the first ones, and gets those `wanted`. `blocks` is what
    the names of a block's tensors begin with, of a stage counted from 1.
    """
    found = {name: name for name in tensors}
    for stage, (held, all_of_it) in enumerate(zip(own, wanted, strict=True), 1):
        last = blocks.format(stage=stage, block=held[-1])
        copied = [name for name in found if name.startswith(last)]
        for block in all_of_it[len(held) :]:
            copy = blocks.format(stage=stage, block=block)
            found |= {copy + name.removeprefix(last): name for name in copied}
    return found
