"""Nodes that reply by a script, and a clock that moves only when a test sleeps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

START = 100.0
"""Time of the clock at first."""


class Clock:
    """Takes the place of the `time` module."""

    def __init__(self) -> None:
        self.now = START
        self.slept: list[tuple[float, float]] = []
        """Start of each sleep, in seconds from the first, and its length."""
        self.looks = 0

    @property
    def passed(self) -> float:
        return self.now - START

    def monotonic(self) -> float:
        self.looks += 1
        assert self.looks < 50_000, "an endless loop"
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.slept.append((self.passed, seconds))
        self.now += seconds


@dataclass
class Answer:
    """A node's answer to a message, and its delay in seconds."""

    after: float = 0.0
    content: RecordDict | Error | None = None
    """None is an empty content."""


Script = Callable[[int, int], Answer | None]
"""Returns the answer, or None for silence, from a node and the number of its message, from 1."""


def message(node: int) -> Message:
    return Message(RecordDict(), dst_node_id=node, message_type="query")


def letters(count: int) -> RecordDict:
    """Return a content of `count` bytes."""
    return RecordDict({"c": ConfigRecord({"k": "x" * (count - 2)})})


class ScriptedGrid(Grid):
    def __init__(self, clock: Clock, nodes: Iterable[int], script: Script) -> None:
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # of all messages
        self.clock, self.nodes, self.script = clock, list(nodes), script
        self.sent: list[tuple[float, int, Message]] = []
        """Time in seconds from the start, receiver, and message."""
        self.unreachable: set[int] = set()
        self.seconds_to_send = self.seconds_to_look = 0.0
        self.waiting: dict[str, tuple[float, Message, Answer | None]] = {}
        self.most_waiting = 0

    def asked(self, node: int) -> list[float]:
        """Return the times at which a node was sent a message, in seconds from the start."""
        return [when for when, to, _ in self.sent if to == node]

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        identities = []
        for each in messages:
            node = each.metadata.dst_node_id
            identity = "" if node in self.unreachable else str(len(self.sent) + 1)
            self.sent.append((self.clock.passed, node, each))
            if identity:
                each.metadata.__dict__["_message_id"] = identity
                answer = self.script(node, len(self.asked(node)))
                self.waiting[identity] = self.clock.now, each, answer
            identities.append(identity)
        self.most_waiting = max(self.most_waiting, len(self.waiting))
        self.clock.now += self.seconds_to_send
        return identities

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self.clock.now += self.seconds_to_look
        answers = []
        for identity in message_ids:
            when, asked, answer = self.waiting[identity]
            if answer is not None and self.clock.now >= when + answer.after:
                del self.waiting[identity]
                content = RecordDict() if answer.content is None else answer.content
                answers.append(Message(content, reply_to=asked))
        return answers

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        raise NotImplementedError


def after(seconds: Mapping[int, float]) -> Script:
    """Return the script of nodes that reply after these seconds; all others are silent."""
    return lambda node, _: Answer(seconds[node]) if node in seconds else None
