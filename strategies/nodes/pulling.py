"""Pulls replies out of a Grid without waiting for any of them.

Flower's own `HttpGrid.pull_messages` waits until a node has uploaded all objects of its reply, up
to two hours, and builds a message before its bytes are counted. A SuperLink deletes a message at
its first pull, so giving up and pulling again gets nothing. This module therefore pulls in two
steps. `look` asks the SuperLink whether a node has announced a reply, and for the ids of its
objects. `pull` fetches the objects that are uploaded, and counts the bytes of the arrays before it
builds the message. Neither step waits, so a round can end at its deadline.

All code that needs Flower's internals for this is here. It needs a stock SuperLink of Flower 1.41.
Other grids (a simulation's, the local engine's) hold complete replies and are pulled by their own
method.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from flwr.app import Array, ArrayRecord, Error, Message, RecordDict
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ObjectTree,
    PullObjectRequest,
    PullObjectResponse,
)
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_head_values_from_object_content,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from protocol.reading import ProtocolError

if TYPE_CHECKING:
    import httpx
    from flwr.superlink.grid import HttpGrid

HTTP_GRID = "flwr.superlink.grid.http_grid"
"""The module of Flower's Grid of a deployment: a second to import, which devices need not spend."""
LOST = 4
"""Flower's error code for a reply that is not available."""
LONGEST_UPLOAD = 7200.0
"""Seconds that a node may take to upload a reply if the round has no deadline; as in Flower."""
FEWEST_OBJECTS, BYTES_PER_OBJECT = 256, 2**16
"""Objects that any reply may consist of, and the bytes that allow one object more."""
STRUCTURE = 2**19
"""Most bytes of a reply besides its arrays' data: names, reports, an error's text."""
HEAD = 256
"""Bytes of an object, or of the response that holds it, besides its data."""

Found = Message | Error
"""A reply, or the error in its place."""


class Mailbox(Protocol):
    """Access to the replies to sent messages; the server looks for all before it pulls one."""

    def look(self, identity: str, most: int) -> Found | None:
        """Note whether a reply to this message, of at most `most` bytes, has been announced."""

    def pull(self, identity: str, most: int) -> Found | None:
        """Return the complete reply to a message, or None; `ProtocolError` if it is invalid."""

    def give_up(self, identity: str) -> str:
        """Stop waiting for a message; return a note on its unfinished reply, or an empty text."""


def mailbox_of(grid: Grid) -> Mailbox:
    """Return the mailbox for this kind of Grid."""
    loaded = sys.modules.get(HTTP_GRID)
    if loaded is not None and isinstance(grid, loaded.HttpGrid):
        return UploadsMailbox(grid)
    return WholeMailbox(grid)


class WholeMailbox:
    """The mailbox of a Grid that holds complete replies only."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def look(self, identity: str, most: int) -> Found | None:
        return None

    def pull(self, identity: str, most: int) -> Found | None:
        """Pull one message; others that its node sent come in the same call and are dropped."""
        for message in self._grid.pull_messages([identity]):
            if message.metadata.reply_to_message_id == identity:
                return message
        return None

    def give_up(self, identity: str) -> str:
        return ""


@dataclass
class Upload:
    """A reply that its node has announced and uploads object by object."""

    objects: list[str]
    """Ids of the reply's objects. The message's own id is first, because nodes upload it last."""
    room: int
    """Bytes that the objects not seen yet may have."""
    structure: int
    """Bytes that those without arrays' data may have."""
    began: float
    there: int = 0
    """Number of objects, counted from the first, that were uploaded at the last look."""


class UploadsMailbox:
    """The mailbox of a deployment's Grid, whose nodes upload replies object by object.

    It keeps no part of an incomplete reply in memory: the parts wait in the SuperLink.
    """

    def __init__(self, grid: HttpGrid) -> None:
        self._grid, self._client = grid, grid._runtime_client
        self._uploads: dict[str, Upload] = {}

    def look(self, identity: str, most: int) -> Found | None:
        if identity in self._uploads:
            return None
        found = self._client.PullMessages(PullAppMessagesRequest(message_ids=[identity]))
        for proto, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            if proto.metadata.reply_to_message_id == identity and identity not in self._uploads:
                self._uploads[identity] = _announced(tree, most)
            else:  # a node may send messages that answer none of the server's
                self._delete(tree.object_id)
        return None

    def pull(self, identity: str, most: int) -> Found | None:
        upload = self._uploads.get(identity)
        if upload is None:
            return None
        try:
            contents = self._contents(upload, most)
            if contents is None and time.monotonic() < upload.began + LONGEST_UPLOAD:
                return None
            if contents is None:
                return self._lost(identity)
            found = _message(upload.objects[0], contents, identity, most)
        except _GoneError:
            return self._lost(identity)
        except Exception:
            self.give_up(identity)
            raise
        self.give_up(identity)
        return found

    def give_up(self, identity: str) -> str:
        """Let the SuperLink delete the uploaded part of a reply and refuse the rest."""
        upload = self._uploads.pop(identity, None)
        if upload is None:
            return ""
        self._delete(upload.objects[0])
        return "it announced a reply, but did not upload all of it"

    def _lost(self, identity: str) -> Error:
        return Error(LOST, self.give_up(identity))

    def _delete(self, root: str) -> None:
        request = ConfirmMessageReceivedRequest(
            node=self._grid.node, run_id=self._grid.run.run_id, message_object_id=root
        )
        self._client.ConfirmMessageReceived(request)

    def _contents(self, upload: Upload, most: int) -> dict[str, bytes] | None:
        """Return all objects of a reply, or None while one is missing.

        The next look continues at the missing object. The objects before it are fetched again when
        the last one is there: twice the traffic for a reply in progress, but no memory for it.
        """
        if len(upload.objects) > _most_objects(most):
            raise ProtocolError(
                f"more than {_most_objects(most)} objects, for {most} bytes", "too-large"
            )
        before, contents = upload.there, {}
        for identity in upload.objects[before:]:
            content = self._fetched(identity, upload.room, most)
            if content is None:
                return None
            upload.room -= len(content)
            if not content.startswith(b"ArrayChunk "):
                upload.structure -= len(content)
            if upload.room < 0 or upload.structure < 0:
                raise _too_large(most)
            upload.there += 1
            contents[identity] = content
        for identity in upload.objects[:before]:
            content = self._fetched(identity, most + STRUCTURE, most)
            if content is None:
                raise _GoneError
            contents[identity] = content
        return contents

    def _fetched(self, identity: str, room: int, most: int) -> bytes | None:
        """Return an object, or None while it is not uploaded; refuse one that is too large."""
        request = PullObjectRequest(
            node=self._grid.node, run_id=self._grid.run.run_id, object_id=identity
        )
        with self._receiving(room + HEAD, most):
            found: PullObjectResponse = self._client.PullObject(request)
        if not found.object_found:
            raise _GoneError
        return found.object_content if found.object_available else None

    @contextmanager
    def _receiving(self, room: int, most: int) -> Iterator[None]:
        """Refuse a response of the SuperLink by its content length, before its body is read."""

        def check(response: httpx.Response) -> None:
            if int(response.headers.get("content-length", 0)) > room:
                raise _too_large(most)

        http = self._client._client
        hooks = http.event_hooks
        http.event_hooks = {**hooks, "response": [*hooks["response"], check]}
        try:
            yield
        finally:
            http.event_hooks = hooks


class _GoneError(Exception):
    """The SuperLink has deleted an object because its upload had stopped for too long."""


def _too_large(most: int) -> ProtocolError:
    return ProtocolError(f"more bytes than expected, at most {most}", "too-large")


def _most_objects(most: int) -> int:
    return FEWEST_OBJECTS + most // BYTES_PER_OBJECT


def _announced(tree: ObjectTree, most: int) -> Upload:
    """Return the upload of an announced message, with at most one object more than allowed."""
    nodes = islice(iterate_object_tree(tree), 4 * _most_objects(most))
    others = dict.fromkeys(node.object_id for node in nodes)
    others.pop(tree.object_id, None)
    objects = [tree.object_id, *islice(reversed(others), _most_objects(most))]
    room = most + STRUCTURE + HEAD * len(objects)
    return Upload(objects, room, STRUCTURE, time.monotonic())


# --- from objects to a message --------------------------------------------------------------------


def _message(root: str, contents: dict[str, bytes], identity: str, most: int) -> Message:
    """Build a message, if its arrays have at most `most` bytes."""
    if (size := array_bytes(root, contents)) > most:
        raise ProtocolError(f"{size} bytes, expected at most {most}", "too-large")
    message = inflate_object_from_contents(root, contents)
    if not isinstance(message, Message) or message.metadata.reply_to_message_id != identity:
        raise ProtocolError("a reply that says it is another message's", "unreadable")
    message.metadata.__dict__["_message_id"] = root
    return message


PARENTS = {"Message": {"RecordDict"}, "RecordDict": {"ArrayRecord", "ConfigRecord", "MetricRecord"},
           "ArrayRecord": {"Array"}, "Array": {"ArrayChunk"}}  # fmt: skip
"""Flower's object types that contain others, each with the types it may contain."""


def array_bytes(root: str, contents: Mapping[str, bytes]) -> int:
    """Return the total bytes of a message's arrays, each counted as often as it is named.

    An array names its chunks by number and may repeat one: 2 bytes can become megabytes. All
    objects that a head names would be built, so an object may name only those that it contains.
    """
    sizes: dict[str, int] = {}

    def size(identity: str, kinds: set[str]) -> int:
        content = contents[identity]
        kind, children, _ = get_object_head_values_from_object_content(content)
        if kind not in kinds:
            expected = " or ".join(sorted(kinds)) or "nothing"
            raise ProtocolError(f"a {kind} where a reply has {expected}", "unreadable")
        if identity not in sizes:
            named = _named(kind, content, children)
            if set(named) != set(children):
                raise ProtocolError(f"a {kind} that names other objects than it has", "unreadable")
            inside = PARENTS.get(kind, set())
            own = len(content) - content.index(0) - 1 if kind == "ArrayChunk" else 0
            each = {child: size(child, inside) for child in children}
            sizes[identity] = own + sum(each[child] for child in named)
        return sizes[identity]

    return size(root, {"Message"})


def _named(kind: str, content: bytes, children: list[str]) -> list[str]:
    """Return the objects inside another one, each as often as it is named there."""
    if kind == "Message":
        return children[:1]
    if kind == "Array":
        numbers = json.loads(get_object_body(content, Array))["arraychunk_ids"]
        return [children[number] for number in numbers]
    if kind in ("RecordDict", "ArrayRecord"):
        of_kind = RecordDict if kind == "RecordDict" else ArrayRecord
        return list(json.loads(get_object_body(content, of_kind)).values())
    return []
