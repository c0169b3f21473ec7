"""A SuperLink whose nodes speak in their own name alone.

Flower checks who sends a message, and not whom the message says it is from: a registered device
could order others about in the server's name, and answer for them.
"""

from __future__ import annotations

from fastapi import HTTPException
from flwr.proto.fleet_pb2 import PushMessagesRequest, PushMessagesResponse
from flwr.server.superlink.linkstate import LinkState
from flwr.superlink.servicer.fleet import fleet_handlers

from nestfl.guarded.patching import replace


def guard_names() -> None:
    """Refuse messages of nodes that say they are from somebody else."""
    push = fleet_handlers.push_messages

    def guarded(request: PushMessagesRequest, state: LinkState) -> PushMessagesResponse:
        sources = {message.metadata.src_node_id for message in request.messages_list}
        if sources != {request.node.node_id}:
            raise HTTPException(403, "a node sends messages in its own name alone")
        return push(request=request, state=state)

    replace(fleet_handlers, "push_messages", guarded)
