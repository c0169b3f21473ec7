"""The messages that carry assignments: a submodel's tensors, and the work that goes with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from flwr.app import ArrayRecord, Message, RecordDict

from models import extract
from protocol.arrays import pack
from strategies.assignment import Assignment
from strategies.levels.submodels import Cut
from strategies.method import Method

Given = TypeVar("Given", bound=Assignment)


def messages(
    method: Method, kind: str, assigned: Iterable[Given], round: int
) -> Iterator[tuple[Given, Message]]:
    """Yield each assignment and its message, which is made when it is asked for.

    As many packed submodels as there are levels are kept for the next client that has the same.
    """
    packed: dict[Cut, ArrayRecord] = {}
    for number, each in enumerate(assigned):
        if each.cut not in packed:
            if len(packed) == len(method.levels):  # clients have windows of their own
                packed.clear()
            packed[each.cut] = pack(extract(method.state, method.submodels.of(each.cut).map))
        work = method.work(each, round).record()
        content = RecordDict({"arrays": packed[each.cut], "work": work})
        node = each.client.node
        yield each, Message(content, dst_node_id=node, message_type=kind, group_id=str(number))
