"""The local engine: a Flower Grid whose nodes are in this process.

    strategy = server_app.app.run(LocalGrid(nodes=4), compose("strategy=heterofl rounds=3"))

A node runs the real ClientApp when its reply is pulled, one node at a time, with the number of
threads that a simulated client has. So a run ends with the same weights as in Ray, no process has
to start, and a debugger reaches breakpoints in clients and in the server.
"""

from __future__ import annotations

import itertools
import logging
import os
import time
from bdb import BdbQuit
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

import plugins
from client_app.app import app

log = logging.getLogger("flwr")

RUN_ID = 1
APP_RAISED = 2
"""Flower's error code of a ClientApp that has raised an exception."""
THREADS = "OMP_NUM_THREADS"
"""Environment variable with a client's number of threads (`training.devices`)."""


class LocalGrid(Grid):
    """A Grid of `nodes` clients; client number n has part n of the run's data set."""

    def __init__(self, nodes: int, cpus_per_client: int = 1) -> None:
        # Flower reads them from messages.
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = RUN_ID
        self.cpus_per_client = cpus_per_client
        self.contexts = {node: _context(node, number, nodes) for number, node in _ids(nodes)}
        """By the node's id, in the order of the clients' numbers."""
        self.waiting: dict[str, Message] = {}
        """The messages whose replies have not been pulled, by their ids."""
        self._run = Run.create_empty(RUN_ID)
        self._message_ids = map(str, itertools.count(1))

    def set_run(self, run: Run) -> None:
        """Set the run that messages belong to."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run that messages belong to."""
        return self._run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the numbers of all clients."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Keep messages until their replies are pulled; a message to an unknown node is lost."""
        pushed = []
        for message in messages:
            if message.metadata.dst_node_id in self.contexts:
                pushed.append(_give_id(message, next(self._message_ids)))
                self.waiting[pushed[-1]] = message
        return pushed

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Let the nodes answer these messages now, and return their replies."""
        replies = []
        for identity in message_ids:
            if identity in self.waiting:
                reply = self.answer(self.waiting.pop(identity))
                if reply is not None:
                    _give_id(reply, next(self._message_ids))
                    replies.append(reply)
        return replies

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Yield each reply as it comes; a message is built after the one before is answered.

        After `timeout` seconds no further message is built.
        """
        end = None if timeout is None else time.monotonic() + timeout
        for message in messages:
            if end is not None and time.monotonic() >= end:
                return
            yield from self.pull_messages(self.push_messages([message]))

    def answer(self, message: Message) -> Message | None:
        """Return the reply of the message's node; an override may return None for no reply."""
        try:
            with _threads(self.cpus_per_client):
                return app(message, self.contexts[message.metadata.dst_node_id])
        except BdbQuit:  # leaving the debugger ends the run, not only this client
            raise KeyboardInterrupt from None
        except Exception as error:
            where = plugins.where_in_plugins(error)
            if where is not None:  # of a user's own code, whose author needs the traceback
                log.exception("A client raised an exception")
            said = f"{type(error).__name__}: {error}" + (f" ({where})" if where else "")
            return Message(Error(APP_RAISED, said), reply_to=message)


def _ids(nodes: int) -> Iterator[tuple[int, int]]:
    """Yield each client's number with its node's id, which differs, as in all of Flower."""
    return ((number, 97 * number + 5) for number in range(nodes))


def _context(node: int, number: int, nodes: int) -> Context:
    return Context(
        run_id=RUN_ID,
        node_id=node,
        node_config={"partition-id": number, "num-partitions": nodes},
        state=RecordDict(),
        run_config={},
    )


def _give_id(message: Message, identity: str) -> str:
    message.metadata.__dict__["_message_id"] = identity  # as Flower's own grids do
    return identity


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Give a client its number of threads, as Ray does, and restore the server's afterwards."""
    before, number = os.environ.get(THREADS), torch.get_num_threads()
    os.environ[THREADS] = str(count)
    try:
        yield
    finally:
        if before is None:
            del os.environ[THREADS]
        else:
            os.environ[THREADS] = before
        torch.set_num_threads(number)
