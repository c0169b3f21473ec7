"""A stock SuperLink in this process, with a run whose server and nodes the test plays."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import uvicorn
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message, RecordDict
from flwr.common.constant import NOOP_FLWR_AID, SUPERLINK_NODE_ID
from flwr.common.serde import message_from_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.node_pb2 import Node
from flwr.server.superlink.linkstate import InMemoryLinkState
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.date import now
from flwr.supercore.object_store.in_memory_object_store import InMemoryObjectStore
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid
from flwr.superlink.main import create_app

from trials.security import as_node
from trials.security.as_node import Parcel
from trials.security.door import Door, Key


@dataclass
class Upload:
    """A reply that a node has announced."""

    node: HandNode
    parcel: Parcel
    session: str
    missing: list[str]

    def upload(self, count: int | None = None) -> None:
        """Upload the next objects of it, or all; Flower's nodes send the message's own last."""
        for _ in range(len(self.missing) if count is None else count):
            identity = self.missing.pop(0)
            as_node.upload(self.node.door, self.node.number, self.parcel, self.session, identity)


@dataclass
class HandNode:
    """A node whose every step a test takes."""

    door: Door
    number: int

    def asked(self) -> Message:
        """Fetch the message that waits for this node."""
        _, found = as_node.pull_messages(self.door, self.number)
        message = message_from_proto(found.messages_list[0])
        has_it = ConfirmMessageReceivedRequest(
            node=Node(node_id=self.number),
            run_id=message.metadata.run_id,
            message_object_id=message.metadata.message_id,
        )
        assert self.door.post("/v1/fleet/confirm-message-received", has_it).good
        return message

    def announce(self, parcel: Parcel) -> Upload:
        _, found = as_node.announce(self.door, self.number, parcel)
        missing = set(found.objects_to_push)
        return Upload(self, parcel, found.session_id, [i for i in parcel.objects if i in missing])

    def reply(self, content: RecordDict) -> Parcel:
        """Return the answer to the message that waits for this node; send nothing."""
        return Parcel.of(Message(content, reply_to=self.asked()))


class SuperLink:
    """Flower's SuperLink, unchanged, at its own port, with a run in progress."""

    def __init__(self, port: int, state: InMemoryLinkState) -> None:
        self.door, self.state = Door(port, tls=False), state
        run = state.create_run(
            None, None, None, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP
        )
        info = state.get_run_info(run_ids=[run])[0]
        assert info.primary_task_id is not None
        token = state.claim_task(info.primary_task_id)
        assert token is not None
        assert state.activate_task(info.primary_task_id)
        # Without heartbeats: Flower ends this process by SIGINT when its token is no longer valid.
        state.task_token_store[info.primary_task_id].active_until = now() + timedelta(days=1)
        self.grid = HttpGrid(f"127.0.0.1:{port}", insecure=True, token=token)
        self.grid.set_run(info)
        TaskIdentity.run_id = run
        TaskIdentity.node_id, TaskIdentity.task_id = SUPERLINK_NODE_ID, info.primary_task_id

    def node(self) -> HandNode:
        """Return a new node, which is online."""
        key = Key(ec.generate_private_key(ec.SECP384R1()))
        number = self.state.create_node(NOOP_FLWR_AID, "", key.public, 1800)
        assert self.state.activate_node(number, 1800)
        return HandNode(self.door.with_key(key), number)

    @property
    def objects(self) -> int:
        """Number of objects of messages that it holds."""
        store = self.state.object_store
        assert isinstance(store, InMemoryObjectStore)
        return len(store)


@contextmanager
def superlink() -> Iterator[SuperLink]:
    """Serve during a test, with the database in memory."""
    app = create_app()
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.01)
        assert thread.is_alive(), "the SuperLink has not started"
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield SuperLink(port, app.state.linkstate_factory.state())
    finally:
        server.should_exit = True
        thread.join()
