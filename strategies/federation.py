"""What a run of a strategy is given, and what it tells of itself."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from data.spec import DatasetSpec
from models import Slice, State, Task
from models.slicing import Rounding, WindowKind
from protocol.records import Work
from protocol.settings import StatisticsKind, TrainSettings
from strategies.aggregation.bounds import UpdateBounds
from strategies.levels.cost import CostKind
from strategies.levels.planning import Level, Split
from strategies.rounds.enrolment import Client

DEFAULT_SHARE = 0.5
"""Of the clients who have come, where `min_replies` names no other."""


class FederationError(RuntimeError):
    """A run that cannot go on."""


@dataclass(frozen=True)
class Federation:
    """What a run is given: the task, its data, the plan's settings, and the rhythm of rounds."""

    task: Task
    dataset: DatasetSpec
    train: TrainSettings
    budgets: tuple[float, ...]
    """Of the fleet's tiers, as shares of the full model, the smallest first."""
    tier_of: Callable[[int, int], int]
    """The tier of client number i of n, where its device does not say what it affords."""
    ratios: tuple[float, ...] | None = None
    """What the levels may cost. Levels can also be given by `widths` or by `splits`; where nothing
    is given they follow from what the clients afford."""
    widths: tuple[float, ...] | None = None
    splits: tuple[Split, ...] | None = None
    levels: int | None = None
    """Into how many levels clients are sorted by what they afford; None finds a number."""
    cost: CostKind = "parameters"
    tolerance: float = 0.1
    weights: State | None = None
    """Pre-trained, of the full network, to start from; None starts from chance."""
    rounding: Rounding = "floor"
    window_kind: WindowKind = "prefix"
    """Which channels a slice keeps, where the method leaves that open."""
    objective: str = "cross-entropy"
    objective_settings: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    rounds: int = 10
    clients_per_round: int = 10
    clients: int = 10
    """How many clients to wait for before the first round."""
    window: int = 16
    deadline: float = 0.0
    min_replies: float | None = None
    """The share of a round's clients that must be there and answer; None is half of whoever is."""
    missing_levels: Literal["stop", "warn"] = "stop"
    """What a run does where no device affords the full model, by its own word, or where it was
    resumed and a level has lost all its clients."""
    weighting: Literal["uniform", "examples"] = "uniform"
    max_examples: int = 10**8
    """That a client may say it has."""
    max_update: UpdateBounds = field(default_factory=UpdateBounds)
    evaluate_every: int = 1
    """Rounds between evaluations on the server; 0 is after the last alone."""
    evaluate_clients_every: int = 0
    statistics: StatisticsKind = "own"
    """What a client's test normalises by, where the network has no statistics of its own."""

    def query(self) -> Work:
        """What a client is asked before the first round: to look at its data and at itself."""
        return Work(self.task, Slice(), self.dataset, self.train)

    def needed(self, asked: int) -> int:
        """How many of those asked must give a usable reply."""
        share = DEFAULT_SHARE if self.min_replies is None else self.min_replies
        return max(1, math.ceil(share * asked))

    def required(self, clients: int) -> int:
        """How many clients must be there for a round, of a run that has so many.

        A share that was named is of the clients that were asked for, whether they came or not.
        """
        if self.min_replies is None:
            return self.needed(min(self.clients_per_round, clients))
        return self.needed(self.clients_per_round)


class Observer:
    """What is told of a run as it goes; does nothing by itself."""

    def started(self, levels: Sequence[Level], clients: Mapping[int, Client]) -> None: ...
    def replied(self, round: int, done: int, of: int) -> None: ...
    def finished_round(self, metrics: Mapping[str, Any]) -> None: ...


@dataclass
class SliceTally:
    """What came of one level's messages in a round."""

    replied: int = 0
    down: int = 0
    up: int = 0
    seconds: float = 0.0
    """That the slowest client trained."""


@dataclass
class AskTally:
    """What came of a question to all clients, such as a test, in a round."""

    asked: int = 0
    answered: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    problems: dict[int, str] = field(default_factory=dict)
    """What was wrong with a client's answer, or why there was none."""
    down: int = 0
    up: int = 0

    def fail(self, client: int, reason: str, detail: str) -> None:
        """Count a client that did not answer."""
        self.failed[reason] += 1
        self.problems[client] = f"{reason} {detail}".strip()

    def refuse(self, client: int, reason: str, detail: str) -> None:
        """Count an answer that cannot be used."""
        self.refused[reason] += 1
        self.problems[client] = detail


@dataclass
class Tally:
    """What came of one round's messages."""

    sampled: int
    done: int = 0
    accepted: int = 0
    loss: float = 0.0
    slices: dict[int, SliceTally] = field(default_factory=lambda: defaultdict(SliceTally))
    """By level."""
    refused: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    details: dict[str, str] = field(default_factory=dict)
    problems: dict[int, str] = field(default_factory=dict)
    """What was wrong with a client's reply, or why there was none."""
    asked: dict[str, AskTally] = field(default_factory=lambda: defaultdict(AskTally))
    """By what was asked besides training."""

    def metrics(self) -> dict[str, Any]:
        return {
            "clients": {
                "sampled": self.sampled,
                "replied": self.accepted,
                "refused": dict(self.refused),
                "failed": dict(self.failed),
                "problems": _by_number(self.problems),
            },
            "bytes": {
                "down": sum(part.down for part in self.slices.values()),
                "up": sum(part.up for part in self.slices.values()),
            },
            "slices": {str(level): asdict(self.slices[level]) for level in sorted(self.slices)},
            "asked": {
                what: {
                    **vars(tally),
                    "failed": dict(tally.failed),
                    "refused": dict(tally.refused),
                    "problems": _by_number(tally.problems),
                }
                for what, tally in sorted(self.asked.items())
            },
            "train": {"loss": self.loss / self.accepted if self.accepted else None},
        }


def _by_number(problems: Mapping[int, str]) -> dict[str, str]:
    return {str(client): problem for client, problem in sorted(problems.items())}
