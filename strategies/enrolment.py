"""Who takes part: nodes say what they are, and get numbers that do not depend on their ids."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from protocol.reading import ProtocolError
from protocol.records import OtherCodeError, Profile
from strategies.streaming import stream

if TYPE_CHECKING:
    from strategies.federation import Federation

FIRST_ANSWER, LATER_ANSWER = 600.0, 60.0
"""Seconds that a node has to say who it is: at first a simulation's workers must start."""

log = logging.getLogger("flwr")  # whose lines `flwr log` shows


@dataclass(frozen=True)
class Client:
    """A node under the number that sampling and seeds go by: its partition, or its place."""

    number: int
    node: int
    profile: Profile


def wait_for_nodes(grid: Grid, wanted: int, patience: float) -> list[int]:
    """All nodes, once as many as wanted are there or no more have come for a while."""
    end = time.monotonic() + patience
    nodes = list(grid.get_node_ids())
    settled = time.monotonic()
    while len(nodes) < wanted and time.monotonic() < end:
        time.sleep(0.2)
        now = list(grid.get_node_ids())
        if len(now) != len(nodes):
            settled = time.monotonic()
        nodes = now
        if nodes and time.monotonic() - settled > patience / 6:
            break
    return nodes


def enrol(
    grid: Grid,
    federation: Federation,
    known: Mapping[int, Client],
    ignored: AbstractSet[int],
    patience: float,
) -> tuple[dict[int, Client], dict[int, str]]:
    """The clients by number, those known and whoever else answers; and why other nodes are not.

    At first, when there is patience, nodes of other code and two of one partition end the run;
    later they are left out, too. Those ignored are not asked.
    """
    nodes = wait_for_nodes(grid, federation.clients, patience)
    familiar = {client.node for client in known.values()} | ignored
    new = [node for node in nodes if node not in familiar]
    profiles, left_out = _profiles(grid, federation, new, first=patience > 0)
    clients = dict(known)
    order = sorted(profiles, key=lambda node: (profiles[node].partition is None,
                                               profiles[node].partition or 0, node))  # fmt: skip
    for node in order:
        partition = profiles[node].partition
        number = partition if partition is not None else max(clients, default=-1) + 1
        if number in clients and clients[number].node in nodes:
            left_out[node] = f"two nodes say that they hold partition {number}"
            if patience:
                raise ProtocolError(left_out[node])
        else:
            clients[number] = Client(number, node, profiles[node])
    for node, reason in left_out.items():
        log.warning("node %d is left out: %s", node, reason)
    return clients, left_out


def _profiles(
    grid: Grid, federation: Federation, nodes: Sequence[int], first: bool
) -> tuple[dict[int, Profile], dict[int, str]]:
    """What each node says of itself, and why others say nothing."""
    content = RecordDict({"work": federation.query().record(), "config": ConfigRecord()})
    queries = ((node, Message(content, dst_node_id=node, message_type="query")) for node in nodes)
    profiles: dict[int, Profile] = {}
    left_out: dict[int, str] = {}
    deadline = FIRST_ANSWER if first else federation.deadline or LATER_ANSWER
    for reply in stream(grid, queries, federation.window, deadline):
        try:
            if reply.message is not None:
                profiles[reply.to] = Profile.read(reply.message.content)
            elif OtherCodeError.__name__ in reply.detail:
                raise OtherCodeError(reply.detail)
            else:
                left_out[reply.to] = f"{reply.failure} {reply.detail}".strip()
        except ProtocolError as error:
            if first and isinstance(error, OtherCodeError):
                raise
            left_out[reply.to] = str(error)
    return profiles, left_out
