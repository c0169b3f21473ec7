"""The replies of one round: each is checked and folded as it arrives, and counted."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from flwr.app import Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from models import State
from protocol.reading import ProtocolError
from protocol.records import read_slice, size
from protocol.records import size as size_of
from protocol.reports import Personal, Trained
from protocol.train_settings import TrainSettings
from strategies.aggregation.aggregators import Aggregator
from strategies.aggregation.update import RefusedUpdateError, Update
from strategies.assignment import Assignment
from strategies.federation import Federation, FederationError
from strategies.levels.cost import TRAINING_PASSES
from strategies.levels.planning import Level
from strategies.levels.submodels import Submodels
from strategies.method import Method
from strategies.nodes.enrolment import Client
from strategies.nodes.exchange import Reply, messages, stream
from training.fitting import passed
from training.perplexity import perplexity


def check_examples(trained: Trained, client: Client) -> None:
    """Refuse a reply that claims examples which its client does not have."""
    if not 1 <= trained.examples <= client.profile.examples:
        raise RefusedUpdateError(
            "examples",
            f"{trained.examples} claimed, but client {client.number} has {client.profile.examples}",
        )


DIVERGED = "numbers that are not finite mostly come of too high a rate: lower train.lr"
"""What may help where networks diverge."""

Counted = Callable[[Update, Trained], Update]
"""Returns the part of an update that counts, by what its client reports."""

TrainingMacs = Callable[[Level], int]
"""Returns the MACs of a forward pass of one example in a level's training."""


class Fold:
    """Folds one round's replies into its aggregator."""

    def __init__(
        self,
        federation: Federation,
        aggregator: Aggregator,
        submodels: Submodels,
        start: State,
        tally: Tally,
        counted: Counted,
        training_macs: TrainingMacs,
        train: TrainSettings,
    ) -> None:
        self.federation, self.aggregator, self.tally = federation, aggregator, tally
        self.submodels, self.start = submodels, start
        """The global state that this round's slices were cut from."""
        self.counted, self.training_macs, self.train = counted, training_macs, train
        self.unanswered: set[int] = set()
        """Clients that did not answer."""
        self.losses: list[tuple[int, float]] = []
        """Of the clients whose replies were taken."""

    def add(self, reply: Reply[Assignment]) -> None:
        """Take a reply, or count why it is of no use."""
        client = reply.to.client.number
        self.tally.done += 1
        if reply.message is None:
            reason = reply.failure or "failed"
            if reply.refused:
                self.tally.refuse(client, reason, reply.detail)
            else:
                self.unanswered.add(client)
                self.tally.fail(client, reason, reply.detail)
            return
        try:
            self.losses.append((client, self._accept(reply.to, reply.message).loss))
        except RefusedUpdateError as refusal:
            self.tally.refuse(client, refusal.reason, str(refusal))

    def result(self, round: int) -> dict[str, Tensor]:
        """Return the new global state, if enough clients gave a usable reply."""
        self.tally.accepted = len(self.losses)
        self.tally.loss = sum(loss for _, loss in sorted(self.losses))
        self._require_enough(round)
        return self.aggregator.result(self.start)

    def _accept(self, assigned: Assignment, message: Message) -> Trained:
        submodel, content = self.submodels.of(assigned.cut), message.content
        client = assigned.client
        self.tally.slices[assigned.level].up += size_of(content)
        try:
            trained, state = Trained.read(content), read_slice(content, submodel.form)
        except ProtocolError as error:
            raise RefusedUpdateError(error.reason, str(error)) from None
        check_examples(trained, client)
        if not math.isfinite(trained.loss):
            raise RefusedUpdateError("non-finite", f"the loss is {trained.loss}")
        update = Update(
            state,
            submodel.map,
            self._weight(assigned, trained),
            client.number,
            assigned.cut.level.slice,
            assigned.level,
            self.start,
        )
        self.federation.max_update.check(update, self.start)
        self.aggregator.add(self.counted(update, trained))
        self.tally.accept(client.number, assigned.level, trained, self._macs(assigned, trained))
        if assigned.personal and trained.personal is not None:
            place = (client.number, assigned.turn)
            self.tally.personal[place] = assigned.level, trained.personal
        return trained

    def _macs(self, assigned: Assignment, trained: Trained) -> int:
        """Return the multiply-accumulates of a client's training."""
        passes = TRAINING_PASSES * passed(trained.examples, self.train)
        return passes * self.training_macs(assigned.cut.level)

    def _weight(self, assigned: Assignment, trained: Trained) -> float:
        if assigned.weight is not None:
            return assigned.weight
        return trained.examples if self.federation.weighting == "examples" else 1

    def _require_enough(self, round: int) -> None:
        needed = self.federation.needed(self.tally.sampled)
        if self.tally.accepted < needed:
            reasons = {**self.tally.failed, **self.tally.refused}
            described = "; ".join(
                f"{count} {reason} ({self.tally.details.get(reason) or 'no detail'})"
                for reason, count in reasons.items()
            )
            diverged = "non-finite" in self.tally.refused
            raise FederationError(
                f"round {round}: {self.tally.accepted} of {self.tally.sampled} clients gave a "
                f"usable reply, {needed} are needed: {described}"
                + (f"; {DIVERGED}" if diverged else "")
            )


@dataclass(frozen=True)
class Question(Assignment):
    """A cut that a client is asked about, under a name."""

    what: str = ""


Answers = list[tuple[Question, RecordDict]]


def ask(
    method: Method, kind: str, questions: Sequence[Question], grid: Grid, tally: Tally
) -> Answers:
    """Ask the clients; they have as much time as if they were sampled in so many rounds."""
    federation = method.federation
    deadline = federation.deadline * math.ceil(len(questions) / federation.clients_per_round)
    outgoing = asked(method, kind, questions, tally)
    return answers_in(stream(grid, outgoing, federation.in_flight, deadline), tally)


def asked(
    method: Method, kind: str, questions: Sequence[Question], tally: Tally
) -> Iterator[tuple[Question, Message]]:
    """Yield the messages of questions, and count them."""
    for what, number in Counter(question.what for question in questions).items():
        tally.asked[what].asked = number
    for question, message in messages(method, kind, questions, method.round):
        tally.asked[question.what].down += size(message.content)
        yield question, message


def answers_in(replies: Iterable[Reply[Question]], tally: Tally) -> Answers:
    """Return what was answered, in the order of the clients' numbers; count who did not."""
    found: Answers = []
    for reply in replies:
        client, counts = reply.to.client.number, tally.asked[reply.to.what]
        if reply.message is not None:
            found.append((reply.to, reply.message.content))
            counts.up += size(reply.message.content)
            counts.answered += 1
        elif reply.refused:
            counts.refuse(client, reply.failure or "refused", reply.detail)
        else:
            counts.fail(client, reply.failure or "failed", reply.detail)
    return sorted(found, key=lambda answer: answer[0].client.number)


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
            "asked": {
                what: {
                    **vars(tally),
                    "failed": dict(tally.failed),
                    "refused": dict(tally.refused),
                    "problems": _by_number(tally.problems),
                }
                for what, tally in sorted(self.asked.items())
            },
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
