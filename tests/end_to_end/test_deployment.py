"""The scripts of deploy/, with real processes: a SuperLink over TLS and three SuperNodes.

The nodes connect through the proxy, if nginx is installed, with their certificates.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from server_app.building import strategy_of
from server_app.config.composing import compose
from server_app.record.metrics import round_line
from tests.support.own_code import METHOD, saved

pytestmark = pytest.mark.processes

APP = Path(__file__).resolve().parents[2]
BUDGETS = {"a": 0.15, "b": 0.3, "c": 1.0}
NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
LEVELS = {"a": 1, "b": 2, "c": 4}
"""Levels by node; HeteroFL's four widths of a resnet20 cost about 1/8, 1/4, 1/2 and all of it."""
SMALL = (
    "model=resnet20 strategy=heterofl model.norm=bn fleet.clients=3 clients_per_round=3 "
    "evaluate.every=0 dataset.max_train=90 dataset.max_test=30 train.epochs=1 train.device=cpu"
)


class Fleet:
    """The processes that a test started, and what they said."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.shown_in_time = False
        """True if a run's log was there, without a terminal, while the run went on."""
        control, link = str(free_port()), str(free_port())
        self.environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "STATE": str(folder),
            "FLWR_HOME": str(folder / "flwr"),
            "NESTFL_CACHE": str(folder / "cache"),
            "CONTROL_PORT": control,
            "LINK_PORT": link if NGINX else control,
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
            "OMP_NUM_THREADS": "1",  # three nodes share this machine
            "PATIENCE": "0",
        }
        self.environment.pop("PYTHONUNBUFFERED", None)  # as on a user's machine
        self.plugin = saved(folder, METHOD)
        chosen: tuple[list[str], ...] = ([], ["--plugin", str(self.plugin)])
        self.codes = ",".join(map(self.fingerprint, chosen))
        """Fingerprints of the code that devices run: this checkout's, with and without a plugin."""

    def fingerprint(self, options: list[str]) -> str:
        told = subprocess.run(
            ["nestfl", "fingerprint", *options],
            env=self.environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return told.stdout.strip()

    def run(self, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(APP / "deploy" / script), *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
        )

    def start(self, name: str, script: str, *arguments: str, **environment: str) -> None:
        """A process group of its own, so that what it starts can be stopped with it."""
        with self.log(name).open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [str(APP / "deploy" / script), *arguments],
                env=self.environment | environment,
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def start_node(self, name: str, partition: int) -> None:
        part = f"partition-id={partition} num-partitions=3"
        config = f'budget={BUDGETS.get(name, 1.0)} {part} code="{self.codes}"'
        self.start(name, "supernode.sh", name, config, NODE_PORT=str(free_port()))

    def submit(self, name: str, overrides: str, **environment: str) -> subprocess.Popen[bytes]:
        arguments = (*SMALL.split(), f"name={name}", *overrides.split())
        self.start(name, "submit.sh", *arguments, **environment)
        return self.processes[name]

    def online(self) -> int:
        told = subprocess.run(
            ["flwr", "supernode", "list", "nestfl", "--format", "json"],
            env=self.environment,
            capture_output=True,
            text=True,
        ).stdout
        return sum(node["status"] == "online" for node in json.loads(told)["nodes"])

    def record(self, name: str) -> Path:
        return self.folder / "runs" / name

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def said(self, name: str) -> str:
        return self.log(name).read_text(errors="replace")

    def stop(self) -> None:
        """Nodes first, which sign off; then whatever is left of each group."""
        for process in reversed(self.processes.values()):
            send(process.pid, signal.SIGTERM)
        end = time.monotonic() + 10.0
        for process in self.processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, end - time.monotonic()))
            send(process.pid, signal.SIGKILL)
            process.wait()

    def show_logs(self) -> None:
        for name in self.processes:
            print(f"--- {name}\n{self.log(name).read_text(errors='replace')[-3000:]}")


def send(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_until(holds: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"did not happen within {seconds} s"
        time.sleep(0.2)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """A SuperLink, three registered nodes that are online, and the key of one that is not."""
    running, names = Fleet(tmp_path_factory.mktemp("deployment")), [*BUDGETS, "stranger"]
    try:
        for script, arguments in (
            ("certificates.sh", ["fleet.example.org"]),
            ("keys.sh", names),
            ("certificates.sh", [str(running.folder / "nodes" / f"{name}.pub") for name in names]),
        ):
            assert running.run(script, *arguments).returncode == 0
        (running.folder / "superlink.db").touch(mode=0o644)  # as one of before was left
        running.start("superlink", "superlink.sh")
        if NGINX:
            running.start("proxy", "proxy.sh", CLIENT_CERTIFICATES="on")
        for port in ("CONTROL_PORT", "LINK_PORT"):
            wait_until(partial(listens, int(running.environment[port])), 60)
        keys = [str(running.folder / "nodes" / f"{name}.pub") for name in BUDGETS]
        for chosen in (keys[:1], keys):  # the second time the first one is there already
            registered = running.run("register.sh", *chosen)
            assert registered.returncode == 0, registered.stdout + registered.stderr
        for partition, name in enumerate(BUDGETS):
            running.start_node(name, partition)
        wait_until(lambda: running.online() == 3, 90)
        yield running
    except BaseException:
        running.show_logs()
        raise
    finally:
        running.stop()


@pytest.fixture(scope="module")
def whole(fleet: Fleet) -> Path:
    """The record of a run that nothing happened to."""
    run = fleet.submit("whole", "rounds=2")
    wait_until(lambda: "This run's directory is" in fleet.said("whole"), 200)
    fleet.shown_in_time = not (fleet.record("whole") / "summary.json").exists()
    if run.wait(400) != 0:
        fleet.show_logs()
        pytest.fail("the run failed")
    return fleet.record("whole")


@pytest.fixture(autouse=True)
def _logs_of_a_failure(fleet: Fleet) -> Iterator[None]:
    yield
    fleet.show_logs()  # pytest shows what is printed when a test fails


def rounds_of(record: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (record / "metrics.jsonl").read_text().splitlines()]


def slice_bytes() -> dict[int, int]:
    """Return the bytes of each level's own tensors."""
    strategy = strategy_of(compose(SMALL))
    return {
        level.number: sum(t.nbytes for t in strategy.submodels.at(level).form.values())
        for level in strategy.levels
    }


def test_keys_that_are_registered_are_passed_over_and_wrong_ones_are_told(fleet: Fleet) -> None:
    known, wrong = fleet.folder / "nodes" / "a.pub", fleet.folder / "server.pem"
    again = fleet.run("register.sh", str(wrong), str(known))
    assert f"{known}: is registered already" in again.stdout
    assert again.returncode == 1
    assert f"{wrong}: not registered: " in again.stderr


def test_the_database_is_its_owners_alone(fleet: Fleet) -> None:
    files = list(fleet.folder.glob("superlink.db*"))
    assert files
    assert [file.stat().st_mode & 0o077 for file in files] == [0] * len(files)


def test_a_node_that_is_not_registered_is_refused(fleet: Fleet) -> None:
    fleet.start_node("stranger", 0)
    assert fleet.processes["stranger"].wait(60) != 0
    assert "Failed to activate SuperNode" in fleet.log("stranger").read_text()


def test_no_device_opens_a_path_that_a_run_names(fleet: Fleet) -> None:
    path = fleet.folder / "digits.npz"
    np.savez(path, x=np.zeros((200, 8, 8), np.uint8), y=np.arange(200) % 10)
    before = {name: len(fleet.said(name)) for name in BUDGETS}
    assert fleet.submit("path", f"rounds=1 dataset.path={path}").wait(200) != 0
    told = fleet.said("path")
    for reason in ("no client has come", "but this device opens no path that a server names, and"):
        assert reason in told
    assert told.count("ServerApp raised an exception: FederationError: no client has come") == 1
    assert "finished:failed" in told
    of_devices = [fleet.said(name)[start:] for name, start in before.items()]
    for text in of_devices:
        assert "ClientApp raised an exception: NotOfferedError: the run's digits is at" in text
    assert "Traceback" not in "".join([told, *of_devices])


def test_refused_code_is_one_line_on_the_device_and_for_the_server(fleet: Fleet) -> None:
    """It is refused before any of it is imported, so by the device's own code."""
    other = saved(fleet.folder / "other", METHOD + "# changed\n")
    before = {name: len(fleet.said(name)) for name in BUDGETS}
    assert fleet.submit("pinned", "rounds=1", PLUGIN=str(other)).wait(200) != 0
    told = fleet.said("pinned")
    assert "finished:failed" in told
    assert "FederationError: no client has come" in told
    assert "this device does not run the code" in told
    of_devices = [fleet.said(name)[start:] for name, start in before.items()]
    for text in of_devices:
        assert "ClientApp raised an exception: CodeError: this device does not run the" in text
    assert "Traceback" not in "".join([told, *of_devices])


def test_a_runs_log_comes_while_it_goes_on_also_where_there_is_no_terminal(
    fleet: Fleet, whole: Path
) -> None:
    assert fleet.shown_in_time
    assert (whole / "summary.json").exists()


def test_three_nodes_train_the_slices_that_they_afford(fleet: Fleet, whole: Path) -> None:
    log = fleet.log("whole").read_text()
    assert "finished:completed" in log
    for line in rounds_of(whole):
        assert round_line(line, 2) in log
    summary = json.loads((whole / "summary.json").read_text())
    assert summary["rounds"] == 2
    assert summary["clients"] == {"sampled": 6, "replied": 6, "refused": {}, "failed": {}}
    for line in rounds_of(whole):
        replied = {int(level): part["replied"] for level, part in line["slices"].items()}
        assert replied == dict.fromkeys(LEVELS.values(), 1)


def test_only_the_slice_crosses_the_wire(whole: Path) -> None:
    own = slice_bytes()
    for line in rounds_of(whole):
        for level, part in line["slices"].items():
            for way in ("down", "up"):
                assert own[int(level)] <= part[way] <= 1.02 * own[int(level)], (level, way)


def test_a_round_of_a_plugins_method_outlives_a_node_that_is_killed_in_it(
    fleet: Fleet, whole: Path
) -> None:
    deadline = round(15 + 1.5 * rounds_of(whole)[0]["seconds"])
    before = trainings(fleet, "a")
    overrides = f"rounds=2 deadline={deadline} strategy=rolling"
    run = fleet.submit("killed", overrides, PLUGIN=str(fleet.plugin))
    wait_until(lambda: trainings(fleet, "a") > before, 400)
    kill_supernode(fleet.processes["a"])
    assert run.wait(400) == 0
    rounds = rounds_of(fleet.record("killed"))
    assert [line["clients"]["replied"] for line in rounds] == [2, 2]
    assert rounds[0]["clients"]["failed"]
    assert rounds[0]["seconds"] < deadline + 10
    assert json.loads((fleet.record("killed") / "summary.json").read_text())["rounds"] == 2
    assert (fleet.record("killed") / "plugins" / "mine.py").read_text() == METHOD


def trainings(fleet: Fleet, node: str) -> int:
    """Return the number of slices that a node was given to train."""
    return fleet.log(node).read_text(errors="replace").count("Receiving: train message")


def kill_supernode(script: subprocess.Popen[bytes]) -> None:
    """The node without a word, and the script that would start it again."""
    send(script.pid, signal.SIGKILL)
    script.wait()


def test_a_node_that_is_stopped_with_all_its_processes_signs_off(fleet: Fleet) -> None:
    """It gets two signals then; without a word, the SuperLink would wait for it for a minute."""
    online = fleet.online()
    send(fleet.processes["b"].pid, signal.SIGTERM)
    assert fleet.processes["b"].wait(30) == 0
    wait_until(lambda: fleet.online() == online - 1, 30)
