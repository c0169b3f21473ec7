"""FedDF (Lin, Kong, Stich, Jaggi: "Ensemble Distillation for Robust Model Fusion", NeurIPS 2020).

- Levels are architectures of their own: they share no weights, and clients train by plain
  cross-entropy (Algorithm 3 of the paper).
- After a round each level that has replies starts at their mean, and learns on the server what all
  replies of the round, of all levels, answer on average to examples without labels.
- A level without a reply keeps its model.

What the server distils with it loads itself; clients are told nothing of it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from data.examples import Examples
from data.spec import DatasetSpec
from data.unlabelled import OWN, UnlabelledSpec, server_parts, unlabelled
from models import State, extract
from models.families import SlicedNetwork
from models.loading import load_network
from strategies.aggregation.aggregators import Aggregator
from strategies.aggregation.spool import Spool
from strategies.federation import Federation, named
from strategies.levels.planning import Level
from strategies.method_settings import PlannedSettings
from strategies.methods.feddf.ensemble_distillation import (
    DistillationSettings,
    Ensemble,
    Targets,
    accuracy,
    answers,
    distil,
)
from strategies.methods.feddf.kept_replies import Kept
from strategies.round import NestedStrategy
from training.devices import threads
from training.testing import LARGEST_BATCH

SERVER_SHARE = 0.1
"""Of the training examples, which the server keeps where the configuration leaves it open."""
SERVERS_OWN = ("unlabelled", "validation", "drop_below_chance", "distillation")
"""Settings of the server's own work, which clients are not sent."""
CHANCE = 0xFEDDF
"""Tells the draws of distillation from those of clients, which go by (seed, round, number), too."""


@dataclass(frozen=True, kw_only=True)
class FedDFSettings(PlannedSettings):
    """FedDF's settings: how levels are made, what is distilled with, and how."""

    name: str = "feddf"
    norm: str | None = "bn-running"
    unlabelled: UnlabelledSpec = field(default_factory=UnlabelledSpec)
    """The examples, of which no label is looked at."""
    validation: float = 0.0
    """The share of what the server keeps of the data set (`dataset.server`) that it validates
    students on, with its labels: they stop when they get no better."""
    drop_below_chance: bool = False
    """Whether replies that answer fewer validation examples right than guessing are no teachers."""
    distillation: DistillationSettings = field(default_factory=DistillationSettings)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.validation <= 1:
            raise ValueError(f"validation is {self.validation}: expected a share, 0 to 1")
        if self.validation == 1 and self.unlabelled.name == OWN:
            raise ValueError(
                "validation is 1, which leaves nothing to distil with of what the server keeps: "
                "expected less, or another data set as unlabelled.name"
            )
        if self.drop_below_chance and not self.validation:
            raise ValueError(
                "drop_below_chance is true, but validation is 0: expected a share above 0, by "
                "which replies are judged"
            )

    @property
    def keeps(self) -> bool:
        """Whether the server needs examples of the run's own data set."""
        return self.unlabelled.name == OWN or self.validation > 0

    def for_clients(self) -> Self:
        """Return the settings without those of the distillation, which clients do not use."""
        plain = FedDFSettings()
        return replace(self, **{name: getattr(plain, name) for name in SERVERS_OWN})

    def complete_data(self, data: DatasetSpec) -> DatasetSpec:
        """Return the data set with a share for the server, where it needs one."""
        asked = self.keeps and data.server is None
        return replace(data, server=SERVER_SHARE) if asked else data

    def check(self, federation: Federation) -> None:
        """Raise where there is nothing to distil with that the network reads."""
        super().check(federation)
        with named("unlabelled"):
            self.unlabelled.source(federation.dataset)
        if self.keeps and not federation.dataset.server:
            why = "unlabelled.name is own" if self.unlabelled.name == OWN else "it validates"
            raise ValueError(
                f"the server keeps nothing of the data set (dataset.server is 0), but {why}: "
                "expected a share above 0"
            )

    def check_files(self, federation: Federation) -> None:
        """Raise where what is distilled with cannot be read, or is not there."""
        with named("unlabelled"):
            unlabelled(self.unlabelled, federation.dataset, self.validation)


class FedDF(NestedStrategy):
    """The server half: the mean of each level, distilled from all replies."""

    Settings = FedDFSettings
    settings: FedDFSettings
    _replies: Spool | None = None
    """Those of a round that were taken, until its server step."""

    def bank(self, name: str, level: Level) -> str | None:
        """Return the level's own bank for every tensor, statistics too."""
        return f"level{level.number}"

    def prepare(self) -> None:
        """Make the levels, and load what is distilled with: before a round, not after one."""
        super().prepare()
        self.unlabelled, self.validation  # noqa: B018

    @cached_property
    def unlabelled(self) -> Examples:
        """The examples to distil with."""
        settings = self.settings
        return unlabelled(settings.unlabelled, self.federation.dataset, settings.validation)

    @cached_property
    def validation(self) -> Examples | None:
        """The server's labelled examples, if it is to have any."""
        share = self.settings.validation
        return server_parts(self.federation.dataset, share)[0] if share else None

    def aggregator(self) -> Aggregator:
        """Return what the config chooses; the replies that it takes wait on disk."""
        replies = self._replies = Spool()
        return self.federation.aggregation.make(lambda inner: Kept(inner, replies))

    def server_step(self, state: State, previous: State) -> State:
        """Return the state with every level that has replies distilled from all of them."""
        replies, self._replies = self._replies or Spool(), None
        began, after, students = time.monotonic(), dict(state), dict[str, Any]()
        present = sorted({each.update.level for each in replies.kept})
        with threads(self.settings.distillation.threads):
            ensemble = self._ensemble(replies)
            if ensemble.teachers:
                targets = ensemble.targets()
                for level in (self.levels[number - 1] for number in present):
                    distilled, students[str(level.number)] = self._distilled(level, state, targets)
                    after |= distilled
        self.tally.server["distillation"] = {
            "teachers": len(replies.kept),
            "dropped": len(replies.kept) - ensemble.teachers,
            "examples": len(self.unlabelled),
            "seconds": time.monotonic() - began,
            "levels": students,
        }
        return after

    def _ensemble(self, replies: Spool) -> Ensemble:
        """Return what the teachers answer, summed in the order of their numbers.

        One whose answers are no numbers would make all targets such, and is left out.
        """
        federation, data = self.federation, self.unlabelled
        distillation = self.settings.distillation
        ensemble = Ensemble(distillation.average, distillation.temperature)
        batches = math.ceil(len(data) / LARGEST_BATCH)
        for place, reply in enumerate(replies.by_client()):
            teacher = load_network(federation.task, reply.slice, reply.state)
            if self._is_below_chance(teacher):
                continue
            told = self._watch("asking the teachers", len(replies.kept) * batches, place * batches)
            logits = answers(teacher, data, federation.train, told)
            if bool(logits.isfinite().all()):
                ensemble.add(logits)
        return ensemble

    def _is_below_chance(self, teacher: SlicedNetwork) -> bool:
        """Return whether a teacher is to be judged, and worse than guessing."""
        if not self.settings.drop_below_chance or self.validation is None:
            return False
        chance = 1 / self.federation.task.num_classes
        return accuracy(teacher, self.validation, self.federation.train) < chance

    def _distilled(
        self, level: Level, mean: State, targets: Targets
    ) -> tuple[State, dict[str, Any]]:
        """Return a level's tensors under their names in the global state, and what was done.

        A student whose weights are no numbers in the end stays the mean.
        """
        began, federation, settings = time.monotonic(), self.federation, self.settings.distillation
        where = self.submodels.at(level).map
        student = load_network(federation.task, level.slice, extract(mean, where))
        chance = (federation.seed, self.round, level.number, CHANCE)
        report = distil(
            student,
            self.unlabelled,
            targets,
            settings,
            federation.train,
            int(np.random.default_rng(chance).integers(2**31)),
            self.validation,
            self._watch(f"distilling level {level.number} of {len(self.levels)}", settings.steps),
        )
        state = {
            where.regions[name].source: tensor.cpu().clone()
            for name, tensor in student.state_dict().items()
        }
        diverged = not all(bool(tensor.isfinite().all()) for tensor in state.values())
        told = {name: value for name, value in asdict(report).items() if value is not None}
        told |= {"diverged": True} if diverged else {}
        return {} if diverged else state, {**told, "seconds": time.monotonic() - began}

    def _watch(self, what: str, of: int, before: int = 0) -> Callable[[int], None]:
        """Return what tells how far the server is."""
        return lambda done: self.observer.working(self.round, what, before + done, of)
