"""Makes the SuperLink refuse messages that a node sends in another's name.

Flower checks a message's sender, but not the sender that the message names. Without this check a
registered device could give orders to other devices in the server's name, and reply for them.
"""

from __future__ import annotations

from fastapi import HTTPException
from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse
from flwr.server.superlink.linkstate import LinkState
from flwr.superlink.servicer.fleet import fleet_handlers

from nestfl.guarded.replacing import replace


def guard_names() -> None:
    """Refuse messages of nodes whose named sender is another node."""
    push = fleet_handlers.push_messages

    def guarded(request: PushMessagesRequest, state: LinkState) -> PushMessagesResponse:
        sources = {message.metadata.src_node_id for message in request.messages_list}
        if sources != {request.node.node_id}:
            raise HTTPException(403, "a node sends messages in its own name alone")
        return push(request=request, state=state)

    replace(fleet_handlers, "push_messages", guarded)
