"""Nodes that announce replies and do not upload them: a stock SuperLink, and a real ServerApp.

`tests/strategies/nodes/test_pulling.py` has the details, without processes.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from signal import SIGTERM

import pytest

from trials.faults.by_hand import (
    NodeByHand,
    a_bomb,
    a_drop_at_a_time,
    all_of_it,
    none_of_it,
)
from trials.faults.case import Case
from trials.faults.fleet import Fleet
from trials.faults.processes import BIN, Process, listens, wait_until
from trials.faults.runs import rounds_of

pytestmark = pytest.mark.processes

WAYS = {"a": all_of_it, "b": all_of_it, "c": none_of_it, "d": a_drop_at_a_time, "e": a_bomb}


class StockFleet(Fleet):
    """A deployment with Flower's own SuperLink, and no proxy before it."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.port = self.control_port
        self.env["LINK_PORT"] = str(self.port)

    def start_link(self) -> None:
        state = self.folder / "state"
        command = [
            *[str(BIN / "flower-superlink"), "--host", "127.0.0.1", "--port", str(self.port)],
            *["--ssl-ca-certfile", str(state / "ca.crt")],
            *["--ssl-certfile", str(state / "server.pem")],
            *["--ssl-keyfile", str(state / "server.key")],
            *["--enable-supernode-auth", "--disable-runtime-dependency-installation"],
        ]
        self.link = Process(command, self.case.log("superlink"), self.folder, self.env)
        wait_until(partial(listens, self.port), "the SuperLink", 120)


def test_a_round_ends_at_its_deadline_whatever_nodes_upload(tmp_path: Path) -> None:
    fleet = StockFleet(Case(tmp_path, tmp_path))
    nodes: list[NodeByHand] = []
    try:
        fleet.prepare(*WAYS)
        for partition, (name, way) in enumerate(WAYS.items()):
            nodes.append(NodeByHand(fleet, name, partition, way, partitions=len(WAYS)))
        count = f"fleet.clients={len(WAYS)} clients_per_round={len(WAYS)}"
        run = fleet.submit("run", *count.split(), "rounds=1", "deadline=60", "min_replies=0.3")
        assert run.end(400) == 0, run.output()[-2000:]
    finally:
        for node in nodes:
            node.close()
        fleet.link.send_to_group(SIGTERM)
        fleet.link.end(60)
    (line,) = rounds_of(fleet.record("run"))
    assert line["clients"]["replied"] == 2
    assert line["clients"]["failed"] == {"late": 2}
    assert line["clients"]["refused"] == {"too-large": 1}
    assert set(line["problems"]) == {"2", "3", "4"}
    assert line["seconds"] < 150  # Flower would wait for 180 s, and for longer with every object
