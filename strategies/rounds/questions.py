"""Questions to all clients besides training, such as tests: who is asked, and who answered what."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from protocol.records import size
from strategies.assignment import Assignment
from strategies.fleet.streaming import Reply, stream
from strategies.method import Method
from strategies.rounds.messages import messages
from strategies.rounds.observer import Observer
from strategies.rounds.tally import Tally


@dataclass(frozen=True)
class Question(Assignment):
    """A cut that a client is asked about, under a name."""

    what: str = ""


Answers = list[tuple[Question, RecordDict]]


def ask(
    method: Method,
    kind: str,
    questions: Sequence[Question],
    grid: Grid,
    tally: Tally,
    observer: Observer | None = None,
) -> Answers:
    """Ask the clients; they have as much time as if they were sampled in so many rounds.

    The observer is told of each answer.
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
    replies: Iterable[Reply[Question]], observer: Observer, round: int, what: str, of: int
) -> Iterator[Reply[Question]]:
    """Yield replies, and tell an observer how many have come."""
    if of:
        observer.answered(round, what, 0, of)
    for done, reply in enumerate(replies, 1):
        yield reply
        observer.answered(round, what, done, of)


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
