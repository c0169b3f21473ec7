"""Checks the replies of a round as they arrive, folds them into the aggregate, and counts them."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Any

from flwr.app import Message, MetricRecord, RecordDict
from flwr.serverapp import Grid

from models import State
from protocol.reading import ProtocolError
from protocol.records import read_slice, size
from protocol.reports import Personal, Trained
from strategies.aggregation.update import RefusedUpdateError, Update
from strategies.assignment import Assignment
from strategies.federation import FederationError
from strategies.levels.cost import TRAINING_PASSES
from strategies.method import Method
from strategies.nodes.enrolment import Client
from strategies.nodes.exchange import Reply, stream
from strategies.observer import Observer
from training.fitting import passed
from training.perplexity import perplexity

DIVERGED = "numbers that are not finite mostly come of too high a rate: lower train.lr"
"""Advice for networks that diverge; part of an error message."""


class Folding:
    """Checks each reply to a round's training and folds it into the method's aggregator."""

    def __init__(self, method: Method, tally: Tally) -> None:
        self.method, self.tally = method, tally
        self.aggregator = method.aggregator()
        self.start = method.state
        """The global state that this round's slices were cut from."""
        self.unanswered: set[int] = set()
        """Clients that did not reply."""
        self.losses: list[tuple[int, float]] = []
        """Client number and loss of each accepted reply."""

    def add(self, reply: Reply[Assignment]) -> None:
        """Fold a reply, or count the reason why it is missing or refused."""
        client = reply.to.client.number
        self.tally.done += 1
        message = self.tally.message_of(reply, client)
        if message is None:
            if not reply.refused:
                self.unanswered.add(client)
            return
        try:
            self.losses.append((client, self._accept(reply.to, message).loss))
        except RefusedUpdateError as refusal:
            self.tally.refuse(client, refusal.reason, str(refusal))

    def result(self, round: int) -> State:
        """Return the aggregated state; raise `FederationError` if too few replies were accepted."""
        self.tally.accepted = len(self.losses)
        self.tally.loss = sum(loss for _, loss in sorted(self.losses))
        self._require_enough(round)
        return self.aggregator.result(self.start)

    def _accept(self, assigned: Assignment, message: Message) -> Trained:
        submodel, content = self.method.submodels.of(assigned.cut), message.content
        client = assigned.client
        self.tally.slices[assigned.level].up += size(content)
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
            trained.classes,
        )
        self.method.federation.max_update.check(update, self.start)
        self.aggregator.add(update)
        self.tally.accept(client.number, assigned.level, trained, macs(assigned, trained))
        if assigned.personal and trained.personal is not None:
            place = (client.number, assigned.turn)
            self.tally.personal[place] = assigned.level, trained.personal
        return trained

    def _weight(self, assigned: Assignment, trained: Trained) -> float:
        if assigned.weight is not None:
            return assigned.weight
        return trained.examples if self.method.federation.weighting == "examples" else 1

    def _require_enough(self, round: int) -> None:
        needed = self.method.federation.needed(self.tally.sampled)
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


def check_examples(trained: Trained, client: Client) -> None:
    """Refuse a reply that claims no example, or more examples than its client has."""
    if not 1 <= trained.examples <= client.profile.examples:
        raise RefusedUpdateError(
            "examples",
            f"{trained.examples} claimed, but client {client.number} has {client.profile.examples}",
        )


def macs(assigned: Assignment, trained: Trained) -> int:
    """Return the multiply-accumulates (MACs) of a client's training."""
    assert assigned.train is not None  # `Method.assignments` sets both
    assert assigned.macs is not None
    return TRAINING_PASSES * passed(trained.examples, assigned.train) * assigned.macs


Answers = list[tuple[Assignment, RecordDict]]
"""Assignments with the content of their clients' replies."""


def ask(
    method: Method,
    kind: str,
    questions: Sequence[Assignment],
    grid: Grid,
    tally: Tally,
    observer: Observer | None = None,
) -> Answers:
    """Send questions to clients and return their answers; the observer is told of each answer.

    The deadline is multiplied by the number of rounds that would be needed to sample as many
    clients.
    """
    federation = method.federation
    deadline = federation.deadline * math.ceil(len(questions) / federation.clients_per_round)
    outgoing = asked(method, kind, questions, tally)
    replies = stream(grid, outgoing, federation.in_flight, deadline)
    if observer is None:
        return answers_in(replies, tally)
    what = "tests" if kind == "evaluate" else kind.removeprefix("query.")
    return answers_in(_watched(replies, observer, method.round, what, len(questions)), tally)


def _watched(
    replies: Iterable[Reply[Assignment]], observer: Observer, round: int, what: str, of: int
) -> Iterator[Reply[Assignment]]:
    """Yield replies, and tell an observer how many have arrived."""
    if of:
        observer.answered(round, what, 0, of)
    for done, reply in enumerate(replies, 1):
        yield reply
        observer.answered(round, what, done, of)


def asked(
    method: Method, kind: str, questions: Sequence[Assignment], tally: Tally
) -> Iterator[tuple[Assignment, Message]]:
    """Yield the messages of questions, and count questions and bytes."""
    for what, number in Counter(question.what for question in questions).items():
        tally.asked[what].asked = number
    for question, message in method.messages(kind, questions, method.round):
        tally.asked[question.what].down += size(message.content)
        yield question, message


def answers_in(replies: Iterable[Reply[Assignment]], tally: Tally) -> Answers:
    """Return the answers, sorted by client number; count the failed and refused ones."""
    found: Answers = []
    for reply in replies:
        counts = tally.asked[reply.to.what]
        message = counts.message_of(reply, reply.to.client.number)
        if message is not None:
            found.append((reply.to, message.content))
            counts.up += size(message.content)
            counts.answered += 1
    return sorted(found, key=lambda answer: answer[0].client.number)


@dataclass(kw_only=True)
class Faults:
    """Counts of failed and refused replies, with their reasons."""

    refused: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    details: dict[str, str] = field(default_factory=dict)
    """The newest detail of each reason."""
    problems: dict[int, str] = field(default_factory=dict)
    """Reason and detail of a client's missing or refused reply, by client number."""

    def message_of(self, reply: Reply[Any], client: int) -> Message | None:
        """Return a reply's message; count the client if its reply failed or was refused."""
        if reply.message is None:
            count = self.refuse if reply.refused else self.fail
            count(client, reply.failure or "failed", reply.detail)
        return reply.message

    def refuse(self, client: int, reason: str, detail: str) -> None:
        """Count a reply that cannot be used."""
        self.refused[reason] += 1
        self.details[reason] = self.problems[client] = detail

    def fail(self, client: int, reason: str, detail: str) -> None:
        """Count a client that did not reply."""
        self.failed[reason] += 1
        self.details[reason] = detail
        self.problems[client] = f"{reason} {detail}".strip()

    def counts(self) -> dict[str, Any]:
        """Return the counts in the form of a round's record."""
        problems = {str(client): problem for client, problem in sorted(self.problems.items())}
        return {"refused": dict(self.refused), "failed": dict(self.failed), "problems": problems}


@dataclass
class SliceTally:
    """The counts of one level in a round: replies, bytes, seconds and MACs."""

    replied: int = 0
    down: int = 0
    up: int = 0
    seconds: float = 0.0
    """Seconds that the slowest client trained."""
    device_seconds: float = 0.0
    """Seconds that all clients of the level trained, added up."""
    macs: int = 0
    """Multiply-accumulates of the accepted clients' training."""


@dataclass
class TrainedTally:
    """A client's training in a round: its largest level, and the sums of its assignments."""

    level: int = 0
    examples: int = 0
    seconds: float = 0.0


@dataclass
class AskTally(Faults):
    """The counts of one kind of question, such as a test, in a round."""

    asked: int = 0
    without: int = 0
    """Clients that were not asked because they have no example for the question."""
    answered: int = 0
    down: int = 0
    up: int = 0

    def record(self) -> dict[str, Any]:
        """Return the counts in the form of a round's record."""
        return {
            "asked": self.asked,
            **({"without": self.without} if self.without else {}),
            "answered": self.answered,
            **self.counts(),
            "down": self.down,
            "up": self.up,
        }


@dataclass
class Tally(Faults):
    """The counts of one round: training, tests and other questions."""

    sampled: int
    done: int = 0
    accepted: int = 0
    loss: float = 0.0
    slices: dict[int, SliceTally] = field(default_factory=lambda: defaultdict(SliceTally))
    """By level number."""
    trained: dict[int, TrainedTally] = field(default_factory=lambda: defaultdict(TrainedTally))
    """By client number, for accepted replies."""
    forgot: int = 0
    """Clients that had lost their memory of earlier rounds."""
    asked: dict[str, AskTally] = field(default_factory=lambda: defaultdict(AskTally))
    """By name of the question, such as a test."""
    personal: dict[tuple[int, int], tuple[int, Personal]] = field(default_factory=dict)
    """By client and turn: the trained level, and its scores on the client's own test part."""
    server: dict[str, Any] = field(default_factory=dict)
    """Values that the method's server step reports, by their names in the record."""
    language: bool = False
    """True if the data are text, whose tests also have a perplexity."""

    def accept(self, client: int, level: int, trained: Trained, macs: int) -> None:
        """Count an accepted reply, with the MACs of its training."""
        part, own = self.slices[level], self.trained[client]
        part.replied += 1
        part.seconds = max(part.seconds, trained.seconds)
        part.device_seconds += trained.seconds
        part.macs += macs
        own.level = max(own.level, level)
        own.examples += trained.examples
        own.seconds += trained.seconds
        self.forgot += trained.forgot

    @property
    def mean_loss(self) -> float:
        """Mean training loss over the accepted replies; NaN without any."""
        return self.loss / self.accepted if self.accepted else math.nan

    def record(self) -> MetricRecord:
        """Return the training metrics for Flower's own loop: mean loss and personal accuracy."""
        found = self._personal()
        tested = {"personal": found["accuracy"]} if found else {}
        return MetricRecord({"loss": self.mean_loss, **tested})

    def metrics(self) -> dict[str, Any]:
        """Return the round's counts in the form of its record."""
        return {
            "clients": {
                "sampled": self.sampled,
                "replied": self.accepted,
                **self.counts(),
                **({"forgot": self.forgot} if self.forgot else {}),
            },
            "bytes": {
                "down": sum(part.down for part in self.slices.values()),
                "up": sum(part.up for part in self.slices.values()),
            },
            "slices": {str(level): asdict(self.slices[level]) for level in sorted(self.slices)},
            "trained": {str(client): asdict(own) for client, own in sorted(self.trained.items())},
            "asked": {what: tally.record() for what, tally in sorted(self.asked.items())},
            "train": {"loss": self.mean_loss if self.accepted else None},
            **({"personal": found} if (found := self._personal()) else {}),
            **self.server,
        }

    def _personal(self) -> dict[str, Any]:
        """Return the scores of the clients' personal tests: means over all, and by level."""
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
