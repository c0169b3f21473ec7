"""Tries a registered device's key at the Fleet API, beyond the device's own data."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

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
from flwr.proto.message_pb2 import (
    ObjectTree,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
)
from flwr.proto.node_pb2 import Node
from flwr.proto.run_pb2 import GetRunRequest, GetRunResponse
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_children_ids_from_object_content,
    get_object_id,
)

from trials.faults.processes import wait_until
from trials.security.door import Answer, Door
from trials.security.site import Site

SERVER = SUPERLINK_NODE_ID
FORGED = "what an attacker wrote"


def pull_messages(door: Door, node: int) -> tuple[Answer, PullMessagesResponse]:
    """Request the messages that wait for a node."""
    answer = door.post("/v1/fleet/pull-messages", PullMessagesRequest(node=Node(node_id=node)))
    return answer, answer.read(PullMessagesResponse)


def pull_object(door: Door, node: int, run: int, identity: str) -> tuple[Answer, bytes]:
    """Request a part of a message by its hash."""
    asked = PullObjectRequest(node=Node(node_id=node), run_id=run, object_id=identity)
    answer = door.post("/v1/fleet/pull-object", asked)
    return answer, answer.read(PullObjectResponse).object_content


def get_code(door: Door, node: int, run: int) -> tuple[Answer, bytes]:
    """Request a run, and its code."""
    asked = GetRunRequest(node=Node(node_id=node), run_id=run)
    answer = door.post("/v1/fleet/get-run", asked)
    if not answer.good:
        return answer, b""
    code = answer.read(GetRunResponse).run.fab_hash
    fab = GetFabRequest(node=Node(node_id=node), run_id=run, hash_str=code)
    answer = door.post("/v1/fleet/get-fab", fab)
    return answer, answer.read(GetFabResponse).fab.content


@dataclass(frozen=True)
class Parcel:
    """A message as it is sent: its metadata, and its objects, children first."""

    message: Message
    objects: dict[str, bytes]

    @classmethod
    def of(cls, message: Message) -> Parcel:
        found = get_all_nested_objects(message)
        return cls(message, {identity: part.deflate() for identity, part in found.items()})

    @property
    def root(self) -> str:
        return next(reversed(self.objects))

    def tree(self) -> ObjectTree:
        def node(identity: str) -> ObjectTree:
            children = get_object_children_ids_from_object_content(self.objects[identity])
            return ObjectTree(object_id=identity, children=map(node, children))

        return node(self.root)

    def changed(self, change: Callable[[str, bytes], bytes]) -> Parcel:
        """Return this message with other bodies of its objects, by their types."""
        new: dict[str, str] = {}
        objects = {}
        for identity, content in self.objects.items():
            head, _, body = content.partition(b"\0")
            kind, children, _ = head.decode().split(" ")
            for old, other in new.items():
                children = children.replace(old, other)
                body = body.replace(old.encode(), other.encode())
            body = change(kind, body)
            content = f"{kind} {children} {len(body)}".encode() + b"\0" + body
            new[identity] = get_object_id(content)
            objects[new[identity]] = content
        return Parcel(self.message, objects)


def repeated(parcel: Parcel, times: int) -> Parcel:
    """Name each array's chunks `times` times: 2 bytes each, but megabytes when read."""

    def change(kind: str, body: bytes) -> bytes:
        if kind != "Array":
            return body
        array = json.loads(body)
        array["arraychunk_ids"] *= times
        return json.dumps(array).encode()

    return parcel.changed(change)


def announce(door: Door, node: int, parcel: Parcel) -> tuple[Answer, PushMessagesResponse]:
    """Announce a message as a node, with any sender in it; upload none of it."""
    parcel.message.metadata.__dict__["_message_id"] = parcel.root
    asked = PushMessagesRequest(
        node=Node(node_id=node),
        messages_list=[message_to_proto(remove_content_from_message(parcel.message))],
        message_object_trees=[parcel.tree()],
    )
    answer = door.post("/v1/fleet/push-messages", asked)
    return answer, answer.read(PushMessagesResponse)


def upload(door: Door, node: int, parcel: Parcel, session: str, identity: str) -> Answer:
    """Upload one object of an announced message."""
    part = PushObjectRequest(
        node=Node(node_id=node),
        run_id=parcel.message.metadata.run_id,
        session_id=session,
        object_id=identity,
        object_content=parcel.objects[identity],
    )
    return door.post("/v1/fleet/push-object", part)


def push(door: Door, node: int, message: Message | Parcel) -> tuple[Answer, bool]:
    """Push any message as a node, with any sender in it; return the answer and its success."""
    parcel = message if isinstance(message, Parcel) else Parcel.of(message)
    answer, found = announce(door, node, parcel)
    for identity in found.objects_to_push:
        upload(door, node, parcel, found.session_id, identity)
    return answer, bool(found.objects_to_push)


def forged(run: int, source: int, to: int, reply_to: str = "") -> Message:
    """Return a message of a run with any sender and receiver."""
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
    """Return the ids of a run's message to a node and of its parts, known only to both sides.

    They are read from the SuperLink's database, which an attacker could not do.
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
