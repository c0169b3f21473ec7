"""The global state, and the place of each level's submodel in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from models import PREFIX, Slice, SliceMap, State, Task, Window, extract, slice_map
from models.loading import load_pretrained, network_of
from strategies.levels.planning import Level

KEPT_MAPS = 64
"""Slice maps kept in memory; with windows that differ by client, maps are made when needed."""

Bank = Callable[[str, Level], str | None]
"""Returns the bank that keeps a tensor, by the tensor's name and the level that holds it, or None
for a tensor that all levels share."""


@dataclass(frozen=True)
class Cut:
    """A level, and the window that chooses its channels in the full network."""

    level: Level
    window: Window = PREFIX


@dataclass(frozen=True, eq=False)
class Submodel:
    """A level's slice as rounds use it, and the place of its tensors in the global state."""

    level: Level
    form: State
    """Its tensors on `meta`: names, shapes and dtypes."""
    map: SliceMap


class Submodels:
    """The submodels of a run's levels, cut out of one global state."""

    def __init__(self, task: Task, levels: Sequence[Level], bank: Bank, whole: Slice) -> None:
        self.task, self.levels, self.bank = task, levels, bank
        self.whole = whole
        """The slice that the global state holds."""
        self._full = task.build(self.whole, device="meta")
        self.at = lru_cache(maxsize=KEPT_MAPS)(self._at)

    def _at(self, level: Level, window: Window = PREFIX) -> Submodel:
        """Return a level's submodel; the window chooses its channels."""
        part = self.task.build(level.slice, device="meta")
        where = slice_map(self._full, part, window, lambda name: self.bank(name, level))
        return Submodel(level, part.state_dict(), where)

    def of(self, cut: Cut) -> Submodel:
        """Return the submodel of a cut."""
        return self.at(cut.level, cut.window)

    def network(self, submodel: Submodel, state: State) -> nn.Module:
        """Return a submodel's network with its part of the global state."""
        return network_of(self.task, submodel.level.slice, extract(state, submodel.map))

    def first_weights(self, seed: int, weights: State | None = None) -> dict[str, Tensor]:
        """Return the full network's first weights: random, or pre-trained except for the heads."""
        # The fork leaves the caller's random state untouched.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            full = self.task.build(self.whole)
        if weights is not None:
            load_pretrained(self.task, full, weights)
        return {name: tensor.clone() for name, tensor in full.state_dict().items()}

    def banks_as_cut(self, level: Level, full: State) -> dict[str, Tensor]:
        """Return the first values of a level's banks: its part of the full network."""
        part = self.task.build(level.slice, device="meta")
        first = extract(full, slice_map(self._full, part, bank_of=lambda name: None))
        regions = self.at(level).map.regions
        return {region.source: first[name] for name, region in regions.items() if region.banked}


def global_slice(task: Task, levels: Iterable[Level]) -> Slice:
    """Return the full network, with an exit wherever a level has one."""
    exits = {unit for level in levels for unit in level.slice.exits or ()}
    return Slice(exits=tuple(sorted(exits | {task.units})))
