"""What a registered device's key opens: the Fleet API, asked for more than is its own."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from flwr.app import ConfigRecord, Message, Metadata, RecordDict
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.serde import message_to_proto
from flwr.proto.fab_pb2 import GetFabRequest, GetFabResponse
from flwr.proto.fleet_pb2 import (
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.message_pb2 import PullObjectRequest, PullObjectResponse, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.run_pb2 import GetRunRequest, GetRunResponse
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

from trials.faults.processes import wait_until
from trials.security.door import Answer, Door
from trials.security.site import Site

SERVER = SUPERLINK_NODE_ID
FORGED = "what an attacker wrote"


def pull_messages(door: Door, node: int) -> tuple[Answer, PullMessagesResponse]:
    """Ask for what waits for a node."""
    answer = door.post("/v1/fleet/pull-messages", PullMessagesRequest(node=Node(node_id=node)))
    return answer, answer.read(PullMessagesResponse)


def pull_object(door: Door, node: int, run: int, identity: str) -> tuple[Answer, bytes]:
    """Ask for a part of a message by its hash."""
    asked = PullObjectRequest(node=Node(node_id=node), run_id=run, object_id=identity)
    answer = door.post("/v1/fleet/pull-object", asked)
    return answer, answer.read(PullObjectResponse).object_content


def get_code(door: Door, node: int, run: int) -> tuple[Answer, bytes]:
    """Ask for a run, and for the code that it runs."""
    asked = GetRunRequest(node=Node(node_id=node), run_id=run)
    answer = door.post("/v1/fleet/get-run", asked)
    if not answer.good:
        return answer, b""
    code = answer.read(GetRunResponse).run.fab_hash
    fab = GetFabRequest(node=Node(node_id=node), run_id=run, hash_str=code)
    answer = door.post("/v1/fleet/get-fab", fab)
    return answer, answer.read(GetFabResponse).fab.content


def push(door: Door, node: int, message: Message) -> tuple[Answer, bool]:
    """Push any message as a node, whoever the message says it is from; whether it was taken."""
    message.metadata.__dict__["_message_id"] = message.object_id
    tree = get_object_tree(message)
    asked = PushMessagesRequest(
        node=Node(node_id=node),
        messages_list=[message_to_proto(remove_content_from_message(message))],
        message_object_trees=[tree],
    )
    answer = door.post("/v1/fleet/push-messages", asked)
    found = answer.read(PushMessagesResponse)
    objects = get_all_nested_objects(message)
    for identity in found.objects_to_push:
        part = PushObjectRequest(
            node=Node(node_id=node),
            run_id=message.metadata.run_id,
            session_id=found.session_id,
            object_id=identity,
            object_content=objects[identity].deflate(),
        )
        door.post("/v1/fleet/push-object", part)
    return answer, bool(found.objects_to_push)


def forged(run: int, source: int, to: int, reply_to: str = "") -> Message:
    """A message of a run that is from and to whom one likes."""
    metadata = Metadata(
        run_id=run,
        message_id="",
        src_node_id=source,
        dst_node_id=to,
        reply_to_message_id=reply_to,
        group_id="",
        created_at=now().timestamp(),
        ttl=60.0,
        message_type="train",
    )
    content = RecordDict({"slice": ConfigRecord({"secret": FORGED})})
    return make_message(metadata, content=content)


def wait_for(site: Site, run: int, node: int) -> tuple[str, list[str]]:
    """The id of what a run sends a node, and its parts': known to the server and that node alone.

    They are read from the SuperLink's database, as nobody else could.
    """
    signed = [value - 2**64 if value >= 2**63 else value for value in (run, node)]
    found: list[str] = []

    def sent() -> bool:
        ask = "SELECT message_id FROM message_ins WHERE run_id = ? AND dst_node_id = ?"
        found[:] = [message for (message,) in database.execute(ask, signed)]
        return bool(found)

    with closing(sqlite3.connect(site.state / "superlink.db", timeout=30)) as database:
        wait_until(sent, "a message to a node", 60)
        ask = "SELECT child_id FROM object_children WHERE parent_id = ?"
        return found[0], [part for (part,) in database.execute(ask, found[:1])]
