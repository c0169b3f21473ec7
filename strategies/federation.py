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
from strategies.cost import CostKind
from strategies.enrolment import Client
from strategies.planning import Level, Split


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
    min_replies: float = 0.5
    weighting: Literal["uniform", "examples"] = "uniform"
    require_full_model: bool = True
    """Whether a run stops where devices say what they afford, and none affords the full model."""
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
        return max(1, math.ceil(self.min_replies * asked))


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
    down: int = 0
    up: int = 0


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
    asked: dict[str, AskTally] = field(default_factory=lambda: defaultdict(AskTally))
    """By what was asked besides training."""

    def metrics(self) -> dict[str, Any]:
        return {
            "clients": {
                "sampled": self.sampled,
                "replied": self.accepted,
                "refused": dict(self.refused),
                "failed": dict(self.failed),
            },
            "bytes": {
                "down": sum(part.down for part in self.slices.values()),
                "up": sum(part.up for part in self.slices.values()),
            },
            "slices": {str(level): asdict(self.slices[level]) for level in sorted(self.slices)},
            "asked": {
                what: {**vars(tally), "failed": dict(tally.failed)}
                for what, tally in sorted(self.asked.items())
            },
            "train": {"loss": self.loss / self.accepted if self.accepted else None},
        }
