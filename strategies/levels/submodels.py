"""The global state, and where each level's submodel lies in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from models import PREFIX, Slice, SliceMap, State, Task, Window, extract, slice_map
from models.pretrained import load_pretrained
from strategies.levels.planning import Level

KEPT_MAPS = 64
"""Where every client has a window of its own, maps are made when they are needed."""


@dataclass(frozen=True, eq=False)
class Submodel:
    """A level as the rounds use it: its slice, and where its tensors lie in the global state."""

    level: Level
    form: State
    """Its tensors, on `meta`: names, shapes, dtypes."""
    map: SliceMap

    @property
    def number(self) -> int:
        return self.level.number


class Submodels:
    """The submodels of all levels; what `private` names is kept in a bank for each level."""

    def __init__(self, task: Task, levels: Sequence[Level], private: Callable[[str], bool]) -> None:
        self.task, self.private = task, private
        self.levels = {level.number: level for level in levels}
        self.whole = global_slice(task, levels)
        self._full = task.build(self.whole, device="meta")
        self.at = lru_cache(maxsize=KEPT_MAPS)(self._at)

    def _at(self, level: int, window: Window = PREFIX) -> Submodel:
        """A level's submodel; the window says which channels it keeps."""
        chosen = self.levels[level]
        part = self.task.build(chosen.slice, device="meta")
        where = slice_map(self._full, part, window, bank=f"level{level}", private=self.private)
        return Submodel(chosen, part.state_dict(), where)

    def initial_state(self, seed: int, weights: State | None = None) -> dict[str, Tensor]:
        """The full network's first weights, and in each bank the part that its level holds.

        They are drawn, or pre-trained, but for the heads.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            full = self.task.build(self.whole)
        if weights is not None:
            load_pretrained(self.task, full, weights)
        state = {name: tensor.clone() for name, tensor in full.state_dict().items()}
        for level in self.levels.values():
            part = self.task.build(level.slice, device="meta")
            first = extract(full.state_dict(), slice_map(full, part, private=lambda name: False))
            for name, region in self.at(level.number).map.regions.items():
                if region.source != name:
                    state[region.source] = first[name]
        return state


def global_slice(task: Task, levels: Iterable[Level]) -> Slice:
    """The whole network, with an exit wherever a level has one."""
    exits = {unit for level in levels for unit in level.slice.exits or ()}
    return Slice(exits=tuple(sorted(exits | {task.units})))
