"""Who takes part: nodes say what they are, and get numbers that do not depend on their ids."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from protocol.records import Profile, ProtocolError
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
) -> tuple[dict[int, Client], set[int]]:
    """The clients by number, those known and whoever else answers; and the nodes that do not.

    A node that runs other code ends the run. Those ignored are not asked.
    """
    nodes = wait_for_nodes(grid, federation.clients, patience)
    familiar = {client.node for client in known.values()} | ignored
    new = [node for node in nodes if node not in familiar]

    def queries() -> list[tuple[int, Message]]:
        request = federation.query(len(nodes)).record()
        content = RecordDict({"work": request, "config": ConfigRecord()})
        return [(node, Message(content, dst_node_id=node, message_type="query")) for node in new]

    profiles: dict[int, Profile] = {}
    deadline = federation.deadline or (FIRST_ANSWER if patience else LATER_ANSWER)
    for reply in stream(grid, queries(), federation.window, deadline):
        if reply.message is not None:
            try:
                profiles[reply.to] = Profile.read(reply.message.content)
            except (KeyError, TypeError, json.JSONDecodeError) as error:
                log.warning("node %d is left out: its profile is no profile: %r", reply.to, error)
        elif "ProtocolError" in reply.detail:
            raise ProtocolError(reply.detail)
        else:
            log.warning("node %d is left out: %s %s", reply.to, reply.failure, reply.detail)
    clients = dict(known)
    order = sorted(profiles, key=lambda node: (profiles[node].partition is None,
                                               profiles[node].partition or 0, node))  # fmt: skip
    for node in order:
        partition = profiles[node].partition
        number = partition if partition is not None else max(clients, default=-1) + 1
        if number in clients and clients[number].node in nodes:
            raise ProtocolError(f"two nodes say that they hold partition {number}")
        clients[number] = Client(number, node, profiles[node])
    return clients, set(new) - profiles.keys()
