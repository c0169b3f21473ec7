"""FedDF (Lin, Kong, Stich, Jaggi: "Ensemble Distillation for Robust Model Fusion", NeurIPS 2020).

- Levels are separate architectures: they share no weights, and clients train by plain cross-entropy
  (Algorithm 3 of the paper).
- After a round each level with replies starts at their mean. The server then distils the mean
  answer of all replies, of all levels, on unlabelled examples into it.
- A level without a reply keeps its model.

The server loads the unlabelled examples itself; clients are not sent these settings.
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
from models.slicing import Rounding
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
"""Share of the training examples that the server keeps, unless the configuration sets it."""
SERVERS_OWN = ("unlabelled", "validation", "drop_below_chance", "distillation")
"""Settings of the server's own work, which clients are not sent."""
CHANCE = 0xFEDDF
"""Separates distillation's random stream from the clients', which use (seed, round, number),
too."""


@dataclass(frozen=True, kw_only=True)
class FedDFSettings(PlannedSettings):
    """FedDF's settings: levels, examples to distil with, and distillation."""

    name: str = "feddf"
    norm: str | None = "bn-running"
    rounding: Rounding = "ceil"
    unlabelled: UnlabelledSpec = field(default_factory=UnlabelledSpec)
    """The examples to distil with; their labels are not used."""
    validation: float = 0.0
    """Share of the server's examples (`dataset.server`) on which students are validated, with
    labels: a student stops when it gets no better. Default (0): none."""
    drop_below_chance: bool = False
    """Leave out replies as teachers if their validation accuracy is below guessing."""
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
        """True if the server needs examples of the run's own data set."""
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
        """Raise where the server would have no examples that the network reads."""
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
        """Raise where the examples to distil with are missing or unreadable."""
        with named("unlabelled"):
            unlabelled(self.unlabelled, federation.dataset, self.validation)


class FedDF(NestedStrategy):
    """The server half: the mean of each level, distilled from all replies."""

    Settings = FedDFSettings
    settings: FedDFSettings
    _replies: Spool | None = None
    """The accepted replies of a round, until its server step."""

    def bank(self, name: str, level: Level) -> str | None:
        """Return the level's own bank for every tensor, with statistics."""
        return f"level{level.number}"

    def prepare(self) -> None:
        """Make the levels, and load the examples, so that errors come before a round."""
        super().prepare()
        self.unlabelled, self.validation  # noqa: B018

    @cached_property
    def unlabelled(self) -> Examples:
        """The examples to distil with."""
        settings = self.settings
        return unlabelled(settings.unlabelled, self.federation.dataset, settings.validation)

    @cached_property
    def validation(self) -> Examples | None:
        """The server's labelled examples, or None without validation."""
        share = self.settings.validation
        return server_parts(self.federation.dataset, share)[0] if share else None

    def aggregator(self) -> Aggregator:
        """Return the config's aggregator; the replies that it accepts wait on disk."""
        replies = self._replies = Spool()
        return self.federation.aggregation.make(lambda inner: Kept(inner, replies))

    def server_step(self, state: State, previous: State) -> State:
        """Return the state with every level that has replies distilled from all of them."""
        replies, self._replies = self._replies or Spool(), None
        began, after, students = time.monotonic(), dict(state), dict[str, Any]()
        present = sorted({each.update.level for each in replies.kept})
        with threads(1):  # the last bits of the weights depend on the number
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
        """Return the sum of the teachers' answers, in order of client number.

        A teacher with a non-finite answer is left out: it would make all targets non-finite.
        """
        federation, data = self.federation, self.unlabelled
        distillation = self.settings.distillation
        ensemble = Ensemble(distillation.temperature)
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
        """Return whether a teacher is judged, and is worse than guessing."""
        if not self.settings.drop_below_chance or self.validation is None:
            return False
        chance = 1 / self.federation.task.num_classes
        return accuracy(teacher, self.validation, self.federation.train) < chance

    def _distilled(
        self, level: Level, mean: State, targets: Targets
    ) -> tuple[State, dict[str, Any]]:
        """Return a level's tensors under their names in the global state, with a report.

        A student that ends with non-finite weights is dropped: the level keeps the mean.
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
        """Return a function that reports the server's progress."""
        return lambda done: self.observer.working(self.round, what, before + done, of)
