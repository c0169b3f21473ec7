"""Faults of nodes that announce a reply and then upload it late, never, or as a bomb.

This process plays all three nodes; the SuperLink and the ServerApp are real.
"""

from __future__ import annotations

from trials.faults.by_hand import (
    NodeByHand,
    Send,
    a_bomb,
    a_drop_at_a_time,
    all_of_it,
    none_of_it,
)
from trials.faults.case import Case, Outcome, fault, survived
from trials.faults.fleet import BUDGETS, Fleet
from trials.faults.processes import find
from trials.faults.runs import rounds_of
from trials.security.as_node import Parcel
from trials.security.flood import forget_peak, peak

DEADLINE = 60
ROUNDS = 2
MUCH = 300 * 2**20
"""Bytes that a reply of 5 MB may add to the ServerApp's memory, beside the round's own work."""


def others_are_kept(case: Case, fleet: Fleet, send: Send, reason: str) -> None:
    """Assert that both rounds have the other nodes' replies, whatever node `c` sends."""
    fleet.prepare(*BUDGETS)
    ways = {"a": all_of_it, "b": all_of_it, "c": send}
    for partition, (name, way) in enumerate(ways.items()):
        NodeByHand(fleet, name, partition, way)
    run = fleet.submit("run", f"rounds={ROUNDS}", f"deadline={DEADLINE}", "min_replies=0.5")
    code = run.end(400)
    case.see(run, rf"round {ROUNDS}/{ROUNDS}|finished:")
    assert code == 0, f"exit {code}"
    for line in rounds_of(fleet.record("run")):
        clients = line["clients"]
        assert clients["replied"] == 2, f"{clients}"
        assert (clients["failed"] | clients["refused"]) == {reason: 1}, f"{clients}"
        assert line["seconds"] < DEADLINE + 15, f"a round took {line['seconds']:.0f} s"


@fault(480)
def announced_and_not_uploaded(case: Case) -> Outcome:
    """A node announces each reply, and uploads none of it."""
    others_are_kept(case, Fleet(case), none_of_it, "late")
    return survived("the node's replies")


@fault(480)
def uploaded_drop_by_drop(case: Case) -> Outcome:
    """A node uploads an object of its reply every 20 s, in rounds of 60 s."""
    others_are_kept(case, Fleet(case), a_drop_at_a_time, "late")
    return survived("the node's replies")


@fault(480)
def repeated_chunk(case: Case) -> Outcome:
    """A node's reply of 5 MB names its one chunk 100 times."""
    before: list[tuple[int, int]] = []

    def send(node: NodeByHand, parcel: Parcel) -> None:
        server = find("flwr-serverapp")
        forget_peak(server)
        before.append((server, peak(server)))
        a_bomb(node, parcel)
        node.ended.wait(10)  # while the server refuses it
        grown.append(peak(server) - before[-1][1])

    grown: list[int] = []
    others_are_kept(case, Fleet(case), send, "too-large")
    case.saw = f"{case.saw}; the ServerApp's memory grew by {max(grown) / 2**20:.0f} MB"
    assert max(grown) < MUCH, f"the ServerApp's memory grew by {max(grown) / 2**20:.0f} MB"
    return survived("the node's replies")
