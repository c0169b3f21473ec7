"""Runs a deployment on this machine with deploy/'s scripts: a SuperLink over TLS, and SuperNodes.

The nodes connect through the proxy if nginx is installed.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from functools import partial
from pathlib import Path

from trials.faults.case import Case
from trials.faults.processes import APP, BIN, Process, free_port, listens, wait_until
from trials.faults.runs import rounds_of

BUDGETS = {"a": 0.15, "b": 0.3, "c": 1.0}
"""Budgets of the nodes; of HeteroFL's four levels of a resnet20 they afford 1, 2 and 4."""
SMALL = (
    "model=resnet20 strategy=heterofl model.norm=bn fleet.clients=3 clients_per_round=3 "
    "evaluate.every=0 dataset.max_train=90 dataset.max_test=30 dataset.test=0 train.epochs=1 "
    "train.device=cpu"
)


class Fleet:
    """The processes of one deployment, in a fault's directory, at their own ports."""

    def __init__(self, case: Case) -> None:
        self.case, self.folder = case, case.folder
        self.control_port = free_port()
        self.nginx = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin") is not None
        self.port = free_port() if self.nginx else self.control_port
        self.proxy: Process | None = None
        self.nodes: dict[str, Process] = {}
        self.env = {
            "PATH": os.pathsep.join([str(BIN), os.environ["PATH"]]),
            "STATE": str(self.folder / "state"),
            "FLWR_HOME": str(self.folder / "state" / "flwr"),
            "NESTFL_CACHE": str(case.shared / "cache"),
            "LINK_PORT": str(self.port),
            "CONTROL_PORT": str(self.control_port),
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
            "OMP_NUM_THREADS": "1",
            "PATIENCE": "0",
        }

    def script(self, name: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a script of deploy/ to its end."""
        return subprocess.run(
            [str(APP / "deploy" / name), *arguments],
            env=os.environ | self.env | env,
            cwd=self.folder,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def start(self, log: str, script: str, *arguments: str, **env: str) -> Process:
        command = [str(APP / "deploy" / script), *arguments]
        return Process(command, self.case.log(log), self.folder, self.env | env)

    def prepare(self, *names: str) -> None:
        """Make certificates and keys, start the SuperLink, and register the nodes."""
        self.make_keys(*names)
        self.start_link()
        registered = self.script("register.sh")
        assert registered.returncode == 0, f"register.sh: {registered.stdout[-200:]}"

    def make_keys(self, *names: str) -> None:
        for script, arguments in (("certificates.sh", ()), ("keys.sh", names)):
            made = self.script(script, *arguments)
            assert made.returncode == 0, f"{script}: {made.stdout[-200:]}"

    def start_link(self) -> None:
        self.link = self.start("superlink", "superlink.sh")
        if self.nginx and self.proxy is None:
            self.proxy = self.start("proxy", "proxy.sh")
        for port in (self.control_port, self.port):
            wait_until(partial(listens, port), "the SuperLink", 60)

    def start_node(
        self, name: str, partition: int, budget: float | None = None, **env: str
    ) -> None:
        budget = BUDGETS.get(name, 1.0) if budget is None else budget
        config = f"budget={budget} partition-id={partition} num-partitions=3"
        env["NODE_PORT"] = str(free_port())
        self.nodes[name] = self.start(name, "supernode.sh", name, config, **env)

    def wait_online(self, count: int) -> None:
        def online() -> bool:
            command = [str(BIN / "flwr"), "supernode", "list", "nestfl", "--format", "json"]
            told = subprocess.run(
                command, env=os.environ | self.env, capture_output=True, text=True
            ).stdout
            try:
                nodes = json.loads(told)["nodes"]
            except (ValueError, KeyError):
                return False
            return len([node for node in nodes if node["status"] == "online"]) == count

        wait_until(online, f"{count} nodes", 90)

    def submit(self, name: str, *overrides: str) -> Process:
        return self.start(f"submit-{name}", "submit.sh", *SMALL.split(), f"name={name}", *overrides)

    def resume(self, name: str, *overrides: str) -> Process:
        record = f"resume={self.record(name)}"
        return self.start(f"resume-{name}", "submit.sh", record, *overrides)

    def record(self, name: str) -> Path:
        return self.folder / "runs" / name

    def rounds(self, name: str) -> int:
        """Return the number of rounds that a run has recorded."""
        record = self.record(name)
        return len(rounds_of(record)) if (record / "metrics.jsonl").exists() else 0

    def wait_rounds(self, name: str, count: int) -> None:
        wait_until(lambda: self.rounds(name) >= count, f"round {count} of {name}", 180)

    def trainings(self, node: str) -> int:
        """Return the number of slices that a node was given to train."""
        return self.nodes[node].output().count("Receiving: train message")

    def wait_training(self, node: str, count: int) -> None:
        """Wait until a node is given its slice for the n-th time, and no longer."""
        wait_until(lambda: self.trainings(node) >= count, f"training {count} of {node}", 180, 0.005)

    def kill_link(self) -> None:
        self.link.send_to_group(signal.SIGKILL)
        self.link.end()


def whole_fleet(case: Case) -> Fleet:
    """Return a deployment whose three nodes are online."""
    fleet = Fleet(case)
    fleet.prepare(*BUDGETS)
    for partition, name in enumerate(BUDGETS):
        fleet.start_node(name, partition)
    fleet.wait_online(3)
    return fleet
