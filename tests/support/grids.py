"""A Grid that runs the real ClientApp in this process: fast, and its faults are ours to choose."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from client_app.app import app

Fault = Callable[[int, Message, Message], Message | None]
"""Of a client's number, the message and its reply: another reply, or None for silence."""


def no_fault(client: int, message: Message, reply: Message) -> Message:
    return reply


class InProcessGrid(Grid):
    """`nodes` clients with random-looking ids, which answer when they are asked for."""

    def __init__(self, nodes: int, fault: Fault = no_fault, shuffle: int | None = None) -> None:
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
        self.contexts = {
            (97 * number) % 1009 + 5: Context(
                run_id=1,
                node_id=number,
                node_config={"partition-id": number, "num-partitions": nodes},
                state=RecordDict(),
                run_config={},
            )
            for number in range(nodes)
        }
        self.fault, self.order = fault, random.Random(shuffle) if shuffle is not None else None
        self.waiting: dict[str, Message] = {}
        self.sent: list[Message] = []
        self.most_in_flight = 0
        self.ids = itertools.count(1)

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        identities = []
        for message in messages:
            identity = str(next(self.ids))
            message.metadata.__dict__["_message_id"] = identity
            self.waiting[identity] = message
            self.sent.append(message)
            identities.append(identity)
        self.most_in_flight = max(self.most_in_flight, len(self.waiting))
        return identities

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        wanted = [i for i in message_ids if i in self.waiting]
        if self.order is not None:
            wanted = [i for i in wanted if self.order.random() < 0.2]
        answers = []
        for identity in wanted[: max(1, len(wanted) // 2)]:
            message = self.waiting.pop(identity)
            answer = self._answer(message)
            if answer is not None:
                answers.append(answer)
        return answers

    def _answer(self, message: Message) -> Message | None:
        context = self.contexts[message.metadata.dst_node_id]
        try:
            reply = app(message, context)
        except Exception as error:
            reply = Message(Error(2, f"{type(error).__name__}: {error}"), reply_to=message)
        answer = self.fault(context.node_id, message, reply)
        if answer is not None:
            answer.metadata.__dict__["_message_id"] = str(next(self.ids))
        return answer

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        raise NotImplementedError
