"""What came of a round's messages: who answered, how many bytes, what was wrong."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from flwr.app import MetricRecord

from protocol.reports import Personal, Trained
from training.perplexity import perplexity


@dataclass
class SliceTally:
    """What came of one level's messages in a round."""

    replied: int = 0
    down: int = 0
    up: int = 0
    seconds: float = 0.0
    """That the slowest client trained."""
    device_seconds: float = 0.0
    """That all its clients together trained."""
    macs: int = 0
    """Multiply-accumulates that training took, of the replies that were taken."""


@dataclass
class TrainedTally:
    """What a client trained in a round: of several assignments the largest level, and the sums."""

    level: int = 0
    examples: int = 0
    seconds: float = 0.0


@dataclass
class AskTally:
    """What came of a question to all clients, such as a test, in a round."""

    asked: int = 0
    without: int = 0
    """Clients that have no example for it, and were not asked."""
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

    def counts(self) -> dict[str, Any]:
        """Return the counts as a round's record has them."""
        counts = {
            **vars(self),
            "failed": dict(self.failed),
            "refused": dict(self.refused),
            "problems": _by_number(self.problems),
        }
        return counts if self.without else {k: v for k, v in counts.items() if k != "without"}

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
    trained: dict[int, TrainedTally] = field(default_factory=lambda: defaultdict(TrainedTally))
    """By client, of the replies that were taken."""
    refused: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    forgot: int = 0
    """Clients that had lost what they should remember."""
    details: dict[str, str] = field(default_factory=dict)
    problems: dict[int, str] = field(default_factory=dict)
    """What was wrong with a client's reply, or why there was none."""
    asked: dict[str, AskTally] = field(default_factory=lambda: defaultdict(AskTally))
    """By what was asked besides training."""
    personal: dict[tuple[int, int], tuple[int, Personal]] = field(default_factory=dict)
    """By client and turn: the level that it trained, and how good that is on its own test part."""
    server: dict[str, Any] = field(default_factory=dict)
    """What the server's own step tells of itself, by the names that the record has for it."""
    language: bool = False
    """Whether these tests are of texts, which have a perplexity."""

    def accept(self, client: int, level: int, trained: Trained, macs: int) -> None:
        """Count a reply that was taken, and the MACs that it took to train."""
        part, own = self.slices[level], self.trained[client]
        part.replied += 1
        part.seconds = max(part.seconds, trained.seconds)
        part.device_seconds += trained.seconds
        part.macs += macs
        own.level = max(own.level, level)
        own.examples += trained.examples
        own.seconds += trained.seconds
        self.forgot += trained.forgot

    def refuse(self, client: int, reason: str, detail: str) -> None:
        """Count a reply that cannot be used."""
        self.refused[reason] += 1
        self.details[reason] = self.problems[client] = detail

    def fail(self, client: int, reason: str, detail: str) -> None:
        """Count a client that did not answer."""
        self.failed[reason] += 1
        self.details[reason] = detail
        self.problems[client] = f"{reason} {detail}".strip()

    @property
    def mean_loss(self) -> float:
        """Over the clients whose replies were taken."""
        return self.loss / self.accepted if self.accepted else math.nan

    def record(self) -> MetricRecord:
        """Return what Flower's own loop reports of a round's training."""
        found = self._personal()
        tested = {"personal": found["accuracy"]} if found else {}
        return MetricRecord({"loss": self.mean_loss, **tested})

    def metrics(self) -> dict[str, Any]:
        """Return the round's counts as its record has them."""
        return {
            "clients": {
                "sampled": self.sampled,
                "replied": self.accepted,
                "refused": dict(self.refused),
                "failed": dict(self.failed),
                "problems": _by_number(self.problems),
                **({"forgot": self.forgot} if self.forgot else {}),
            },
            "bytes": {
                "down": sum(part.down for part in self.slices.values()),
                "up": sum(part.up for part in self.slices.values()),
            },
            "slices": {str(level): asdict(self.slices[level]) for level in sorted(self.slices)},
            "trained": {str(client): asdict(own) for client, own in sorted(self.trained.items())},
            "asked": {what: tally.counts() for what, tally in sorted(self.asked.items())},
            "train": {"loss": self.mean_loss if self.accepted else None},
            **({"personal": found} if (found := self._personal()) else {}),
            **self.server,
        }

    def _personal(self) -> dict[str, Any]:
        """Return the clients' tests of what they trained: means over all and over levels."""
        tests = [self.personal[place] for place in sorted(self.personal)]
        if not tests:
            return {}
        by_level: dict[int, list[Personal]] = defaultdict(list)
        for level, test in tests:
            by_level[level].append(test)
        own = {client: self.personal[client, turn][1] for client, turn in sorted(self.personal)}
        return {
            **self._means([test for _, test in tests]),
            "levels": {str(level): self._means(by_level[level]) for level in sorted(by_level)},
            "scores": {str(client): test.accuracy for client, test in own.items()},
        }

    def _means(self, tests: Sequence[Personal]) -> dict[str, float]:
        found = {
            name: fmean(getattr(test, name) for test in tests) for name in ("accuracy", "loss")
        }
        if self.language:
            found["perplexity"] = fmean(perplexity(test.loss) for test in tests)
        return found


def _by_number(problems: Mapping[int, str]) -> dict[str, str]:
    return {str(client): problem for client, problem in sorted(problems.items())}
