"""HeteroFL (Diao, Ding, Tarokh: "HeteroFL", ICLR 2021): levels of width, and a masked loss.

- Levels keep the first channels of each layer (section 3, "hidden channel shrinkage").
- A client keeps its level ("fix"), or draws a level each round ("dynamic").
- Static batch norm ("sBN"): training normalises by the batch and keeps no statistics; before a
  test all clients gather them once, and the server averages them (`with_statistics` in
  `strategies/evaluation.py`, for any method whose networks have such norms).
- A scaler after each layer divides by the level's width while training ("Scaler").
- The logits of classes that a client does not have are 0 in its loss ("masking trick"), and each
  row of the classifier is averaged over the clients that have its class.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from models import State, Task
from models.families import SlicedNetwork
from models.slicing import Rounding, SliceMap
from strategies.aggregation.aggregators import Aggregator
from strategies.aggregation.update import RefusedUpdateError, Update
from strategies.assignment import takes_largest
from strategies.federation import Federation
from strategies.levels.planning import Level
from strategies.method_settings import PlannedSettings
from strategies.nodes.enrolment import Client
from strategies.round import NestedStrategy
from training.local_training import MaskedTraining


@dataclass(frozen=True, kw_only=True)
class HeteroFLSettings(PlannedSettings):
    """HeteroFL's settings; the paper's widths are 1/16 to 1."""

    name: str = "heterofl"
    norm: str | None = "bn-static"
    scaler: str | None = "train"
    rounding: Rounding = "ceil"
    masked_loss: bool = True
    """Set the logits of classes that a client does not have to 0 in its loss."""
    own_classes: bool = True
    """Average each row of the classifier only over the clients that have its class; the row of a
    class that no client has stays unchanged."""
    dynamic: bool = False
    """Let clients draw a level each round, in proportion to the fleet's clients of each level."""

    def check(self, federation: Federation) -> None:
        """Raise where both `dynamic` and `fleet.spread` would draw levels."""
        super().check(federation)
        if self.dynamic and federation.fleet.spread:
            raise ValueError(
                f"dynamic draws from all levels, but fleet.spread is {federation.fleet.spread}, "
                "which draws from those near a client's own: choose dynamic=false, or spread 0"
            )


class HeteroFLTraining(MaskedTraining):
    """The client half: cross-entropy over the client's own classes."""

    settings: HeteroFLSettings

    def begin(self, network: SlicedNetwork) -> None:
        """Find the client's classes, and report them to the server."""
        super().begin(network)
        if self.settings.own_classes:
            self.classes = tuple(self.present.nonzero().flatten().tolist())


class OwnClasses:
    """Removes the classifier's rows of classes that a client lacks, before averaging."""

    def __init__(self, inner: Aggregator, task: Task) -> None:
        self.inner, self.task = inner, task

    def add(self, update: Update) -> None:
        """Fold in one client's update, or raise `RefusedUpdateError` and change nothing."""
        self.inner.add(self.counted(update))

    def result(self, previous: State) -> dict[str, Tensor]:
        """Return the state that the inner aggregator makes of the updates."""
        return self.inner.result(previous)

    def counted(self, update: Update) -> Update:
        """Return the part of an update that is averaged: the rows of the client's classes."""
        names = self.task.class_rows(update.slice)
        if not names & update.state.keys():
            return update
        classes, known = update.classes or (), self.task.num_classes
        if not classes or classes[-1] >= known:
            raise RefusedUpdateError(
                "classes", f"{list(classes)}: expected some of 0 to {known - 1}"
            )
        if len(classes) == known:
            return update
        rows = torch.tensor(classes)
        state = {name: t[rows] if name in names else t for name, t in update.state.items()}
        return replace(update, state=state, map=_with_rows(update.map, names, classes))


class HeteroFL(NestedStrategy):
    """The server half: the nested mean, with own classes only."""

    Settings = HeteroFLSettings
    Training = HeteroFLTraining
    settings: HeteroFLSettings

    def aggregator(self) -> Aggregator:
        """Return the config's aggregator, which receives the rows of each client's own classes."""
        chosen = super().aggregator()
        return OwnClasses(chosen, self.federation.task) if self.settings.own_classes else chosen

    def levels_of(self, client: Client) -> Mapping[Level, float]:
        """Return the levels that a client draws, weighted by the number of clients of each.

        A device that states its own budget draws no level above it.
        """
        if not self.settings.dynamic or takes_largest(client, self.federation):
            return super().levels_of(client)
        own, clients = self.level_of(client), self.coverage.owned
        choices = self.levels if client.profile.budget is None else self.levels[: own.number]
        return {level: float(clients[level.number]) for level in choices}


# Cached, since NestedMean counts the weights of updates that share a map in one go.
@lru_cache(maxsize=256)
def _with_rows(where: SliceMap, names: frozenset[str], rows: tuple[int, ...]) -> SliceMap:
    """Return a slice's map with only some rows of the named tensors."""
    regions = dict(where.regions)
    for name in names:
        axes, shape = regions[name].axes[1:], regions[name].shape[1:]
        regions[name] = replace(
            regions[name], axes=(np.asarray(rows), *axes), shape=(len(rows), *shape)
        )
    return SliceMap(regions)
