"""The global state, and where each level's submodel lies in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from models import Slice, SliceMap, State, Task, extract, slice_map
from models.pretrained import load_pretrained
from strategies.planning import Level


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


def make_submodels(
    task: Task, levels: Iterable[Level], private: Callable[[str], bool]
) -> dict[int, Submodel]:
    """The levels by number; what `private` names is kept in a bank for each level."""
    levels = list(levels)
    full = task.build(global_slice(task, levels), device="meta")
    submodels = {}
    for level in levels:
        part = task.build(level.slice, device="meta")
        where = slice_map(full, part, bank=f"level{level.number}", private=private)
        submodels[level.number] = Submodel(level, part.state_dict(), where)
    return submodels


def initial_state(
    task: Task, submodels: Iterable[Submodel], seed: int, weights: State | None = None
) -> dict[str, Tensor]:
    """The full network's first weights, and in each bank the part of them that its level holds.

    They are drawn, or pre-trained, but for the heads.
    """
    submodels = list(submodels)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        full = task.build(global_slice(task, [submodel.level for submodel in submodels]))
    if weights is not None:
        load_pretrained(task, full, weights)
    state = {name: tensor.clone() for name, tensor in full.state_dict().items()}
    for submodel in submodels:
        part = task.build(submodel.level.slice, device="meta")
        first = extract(full.state_dict(), slice_map(full, part, private=lambda name: False))
        for name, region in submodel.map.regions.items():
            if region.source != name:
                state[region.source] = first[name]
    return state


def global_slice(task: Task, levels: Iterable[Level]) -> Slice:
    """The whole network, with an exit wherever a level has one."""
    exits = {unit for level in levels for unit in level.slice.exits or ()}
    return Slice(exits=tuple(sorted(exits | {task.units})))
