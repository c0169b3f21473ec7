"""Enrols nodes as clients, with numbers that do not depend on node ids."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from protocol.reading import ProtocolError, whole
from protocol.reports import Profile
from strategies.federation import Federation
from strategies.nodes.exchange import Reply, stream

FIRST_ANSWER, LATER_ANSWER = 600.0, 60.0
"""Seconds for a node to describe itself: at the start of a run, when a simulation's workers must
start first, and later."""
ASK_AGAIN = (20.0, 40.0, 80.0, 160.0)
"""Seconds without a reply until silent nodes are asked again; after the last, they are left out."""
NO_WORD = ("late", "unreachable", "expired", "reply-lost", "node-gone")
"""Failures in `stream`, or reported by the SuperLink, after which a node may still reply later."""

SHOWN = 5
"""Most nodes that a log message lists."""

log = logging.getLogger("flwr")  # the logger that `flwr log` shows


@dataclass(frozen=True)
class Client:
    """A node with its number in sampling and seeds: its partition, or its order of enrolment."""

    number: int
    node: int
    profile: Profile


def wait_for_nodes(grid: Grid, wanted: int, patience: float) -> list[int]:
    """Return the nodes once `wanted` are online, or none has come for a sixth of `patience`."""
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
    """Return the clients by number, known and new, and the reasons why other nodes are left out.

    Ignored nodes are not asked. A node with other code, or with a partition that another node
    already holds, is left out with a warning. It does not end the run for the others.
    """
    nodes = wait_for_nodes(grid, federation.fleet.clients, patience)
    familiar = {client.node for client in known.values()} | ignored
    profiles, left_out = _profiles(grid, federation, set(nodes) - familiar, patience > 0)
    clients = dict(known)
    # Nodes with a partition first, then by id: the numbers do not depend on the order of replies.
    order = sorted(profiles, key=lambda node: (profiles[node].partition is None,
                                               profiles[node].partition or 0, node))  # fmt: skip
    for node in order:
        partition = profiles[node].partition
        number = partition if partition is not None else max(clients, default=-1) + 1
        # The first node with a partition keeps it for as long as it is online.
        if number in clients and clients[number].node in nodes:
            other = clients[number].node
            left_out[node] = f"two nodes say that they hold partition {number}: {other} and {node}"
        else:
            clients[number] = Client(number, node, profiles[node])
    for node, reason in left_out.items():
        log.warning("node %d is left out: %s", node, reason)
    return clients, left_out


def _profiles(
    grid: Grid, federation: Federation, nodes: AbstractSet[int], first: bool
) -> tuple[dict[int, Profile], dict[int, str]]:
    """Return the nodes' profiles, and the reasons why other nodes gave none.

    A silent node is asked again: its question may have been lost with a SuperLink that was killed.
    Only a reply to the newest question counts. A SuperNode that still holds a reply of an ended run
    answers each message only when the next one comes. It is found here, before it can delay every
    round.
    """
    profiles: dict[int, Profile] = {}
    left_out: dict[int, str] = {}
    unanswered, began = set(nodes), time.monotonic()
    limit = FIRST_ANSWER if first else federation.deadline or LATER_ANSWER
    for attempt, pause in enumerate(ASK_AGAIN):
        unanswered &= set(grid.get_node_ids())
        asked = time.monotonic()
        left = began + limit - asked
        if not unanswered or left <= 0:
            break
        if attempt:
            _warn_of(unanswered, asked - began)
        patient = first and attempt == 0  # a simulation's workers must start
        questions = _questions(federation, sorted(unanswered))
        deadline = left if patient else min(pause, left)
        for reply in stream(grid, questions, federation.in_flight, deadline, silence=pause):
            if reply.failure not in NO_WORD:
                unanswered.discard(reply.to)
                _note(reply, profiles, left_out, federation.max_examples)
        if unanswered and not patient:  # a restarting node fails at once, and is back soon
            time.sleep(max(0.0, asked + deadline - time.monotonic()))
    unanswered &= set(grid.get_node_ids())  # nodes that have left are asked when they are back
    for node in unanswered:
        left_out[node] = (
            f"online, but no answer in {time.monotonic() - began:.0f} s: restart its SuperNode, "
            "which may still hold a reply for a run that has ended"
        )
    return profiles, left_out


def _questions(federation: Federation, nodes: Sequence[int]) -> Iterator[tuple[int, Message]]:
    content = RecordDict({"work": federation.query().record(), "config": ConfigRecord()})
    for node in nodes:
        yield node, Message(content, dst_node_id=node, message_type="query")


def _note(
    reply: Reply[int],
    profiles: dict[int, Profile],
    left_out: dict[int, str],
    max_examples: int,
) -> None:
    """Record a node's profile, or the reason why it is unusable."""
    try:
        if reply.message is not None:
            profile = Profile.read(reply.message.content)
            for part in ("examples", "validation", "test"):
                whole(getattr(profile, part), f"{part} (see max_examples)", most=max_examples)
            profiles[reply.to] = profile
        else:
            left_out[reply.to] = f"{reply.failure} {reply.detail}".strip()
    except ProtocolError as error:
        left_out[reply.to] = str(error)


def _warn_of(unanswered: AbstractSet[int], seconds: float) -> None:
    log.warning(
        "no answer from node %s in %.0f s, asking again; if it stays silent, restart its SuperNode",
        ", ".join(map(str, sorted(unanswered)[:SHOWN]))
        + (", ..." if len(unanswered) > SHOWN else ""),
        seconds,
    )
