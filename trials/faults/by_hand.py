"""Nodes of a deployment that this process plays: the real ClientApp, and faulty uploads.

They speak the Fleet API as Flower's SuperNodes do, with registered keys.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from flwr.app import Context, Error, Message, RecordDict
from flwr.common.serde import message_from_proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from client_app.app import app
from trials.faults.fleet import BUDGETS, Fleet
from trials.security import as_node
from trials.security.as_node import Parcel, repeated
from trials.security.door import Door, Key

PAUSE = 0.2
"""Seconds between two looks for messages."""
RAISED = 2
"""Flower's error code of a ClientApp that has raised an exception."""
ONE_AT_A_TIME = threading.Lock()
"""ClientApps change the state of their process."""

Send = Callable[["NodeByHand", Parcel], None]
"""Sends a node's trained slice, or does something else with it."""


def all_of_it(node: NodeByHand, parcel: Parcel) -> None:
    """Upload a reply as an honest node does."""
    as_node.push(node.door, node.number, parcel)


def none_of_it(node: NodeByHand, parcel: Parcel) -> None:
    """Announce a reply, and upload none of its objects."""
    as_node.announce(node.door, node.number, parcel)


def a_drop_at_a_time(node: NodeByHand, parcel: Parcel, pause: float = 20.0) -> None:
    """Upload an object every `pause` seconds, which keeps the upload's session alive."""
    _, found = as_node.announce(node.door, node.number, parcel)
    for identity in found.objects_to_push:
        if node.ended.wait(pause):
            return
        as_node.upload(node.door, node.number, parcel, found.session_id, identity)


def a_bomb(node: NodeByHand, parcel: Parcel) -> None:
    """Name the chunk of an array of 5 MB a hundred times."""
    message = parcel.message
    arrays = message.content.array_records["arrays"]
    one = next(iter(arrays.values()))
    one.data = one.data.ljust(5 * 2**20, b"\1")[: 5 * 2**20]
    as_node.push(node.door, node.number, repeated(Parcel.of(message), 100))


class NodeByHand(threading.Thread):
    """A node that answers all messages, and sends trained slices in its own way."""

    def __init__(
        self,
        fleet: Fleet,
        name: str,
        partition: int,
        send: Send = all_of_it,
        partitions: int = 3,
    ) -> None:
        super().__init__(daemon=True)
        state, self.send, self.ended = fleet.folder / "state", send, threading.Event()
        self.door = Door(fleet.port, state / "ca.crt", Key.of(state / "nodes" / name))
        self.number = self.door.activate()
        assert self.number, f"{name} cannot come online"
        budget = BUDGETS.get(name, 1.0)
        config = {"budget": budget, "partition-id": partition, "num-partitions": partitions}
        self.context = Context(0, self.number, dict(config), RecordDict(), {})
        self.start()

    def run(self) -> None:
        while not self.ended.wait(PAUSE):
            message = self.asked()
            if message is not None:
                trained, reply = message.metadata.message_type == "train", self.answer(message)
                (self.send if trained else all_of_it)(self, Parcel.of(reply))

    def answer(self, message: Message) -> Message:
        """Return the real ClientApp's reply."""
        try:
            with ONE_AT_A_TIME:
                return app(message, self.context)
        except Exception as error:
            return Message(Error(RAISED, f"{type(error).__name__}: {error}"), reply_to=message)

    def asked(self) -> Message | None:
        """Fetch the next message with all of its objects; None if there is none."""
        _, found = as_node.pull_messages(self.door, self.number)
        if not found.messages_list:
            return None
        asked = message_from_proto(found.messages_list[0])
        root, run = asked.metadata.message_id, asked.metadata.run_id
        contents: dict[str, bytes] = {}
        for part in iterate_object_tree(found.message_object_trees[0]):
            while not contents.get(part.object_id):  # the server may still be uploading it
                _, content = as_node.pull_object(self.door, self.number, run, part.object_id)
                contents[part.object_id] = content
        message = inflate_object_from_contents(root, contents)
        assert isinstance(message, Message)
        message.metadata.__dict__["_message_id"] = root
        has_it = ConfirmMessageReceivedRequest(
            node=Node(node_id=self.number), run_id=run, message_object_id=root
        )
        self.door.post("/v1/fleet/confirm-message-received", has_it)
        return message

    def close(self) -> None:
        """Stop answering."""
        self.ended.set()
