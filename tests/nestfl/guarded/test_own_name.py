"""A node's messages must name the node itself as their sender."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi import HTTPException
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata
from flwr.proto.node_pb2 import Node
from flwr.superlink.servicer.fleet import fleet_handlers

from nestfl.guarded.own_name import guard_names

SERVER, NODE, OTHER = 1, 7, 8


@pytest.fixture
def pushed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The pushed messages that reached Flower."""
    taken: list[Any] = []
    monkeypatch.setattr(
        fleet_handlers, "push_messages", lambda request, state: taken.append((request, state))
    )
    guard_names()
    return taken


def of(*sources: int) -> PushMessagesRequest:
    messages = [Message(metadata=Metadata(src_node_id=source)) for source in sources]
    return PushMessagesRequest(node=Node(node_id=NODE), messages_list=messages)


def test_a_node_speaks_in_its_own_name(pushed: list[Any]) -> None:
    request = of(NODE)
    state: Any = object()
    fleet_handlers.push_messages(request=request, state=state)
    assert pushed == [(request, state)]


@pytest.mark.parametrize("sources", [(SERVER,), (OTHER,), (NODE, OTHER), ()])
def test_a_node_does_not_speak_for_another(pushed: list[Any], sources: tuple[int, ...]) -> None:
    state: Any = object()
    with pytest.raises(HTTPException) as refusal:
        fleet_handlers.push_messages(request=of(*sources), state=state)
    assert refusal.value.status_code == 403
    assert not pushed
