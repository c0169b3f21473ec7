"""Adds faults that a test chooses to the local engine's Grid, and records its messages."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from flwr.app import Message

from nestfl.local_engine import LocalGrid

Fault = Callable[[int, Message, Message], Message | None]
"""Returns another reply, or None for silence, from a client's number, a message and its reply."""


def no_fault(client: int, message: Message, reply: Message) -> Message:
    return reply


class InProcessGrid(LocalGrid):
    """`nodes` clients that reply to half of the requests at a time, or, shuffled, to fewer."""

    def __init__(self, nodes: int, fault: Fault = no_fault, shuffle: int | None = None) -> None:
        super().__init__(nodes)
        self.fault, self.order = fault, random.Random(shuffle) if shuffle is not None else None
        self.sent: list[Message] = []
        self.most_in_flight = 0

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = list(messages)
        identities = super().push_messages(sent)
        self.sent += sent
        self.most_in_flight = max(self.most_in_flight, len(self.waiting))
        return identities

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        wanted = [i for i in message_ids if i in self.waiting]
        if self.order is not None:
            wanted = [i for i in wanted if self.order.random() < 0.2]
        return super().pull_messages(wanted[: max(1, len(wanted) // 2)])

    def answer(self, message: Message) -> Message | None:
        reply = super().answer(message)
        client = list(self.contexts).index(message.metadata.dst_node_id)
        return self.fault(client, message, reply) if reply is not None else None
