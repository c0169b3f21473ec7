"""`nestfl run` in the real Ray simulation, while processes are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.support.simulations import NESTFL, SMOKE, assert_same_weights, descendants, nestfl

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run on the local engine, whose weights are Ray's (test_simulation.py)."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    done = nestfl(*SMOKE, "engine=local", "--run-dir", str(run))
    assert done.returncode == 0, done.stdout + done.stderr
    return run


def test_a_server_killed_and_resumed_with_two_workers_ends_with_the_weights_of_one(
    finished: Path, tmp_path: Path
) -> None:
    run = tmp_path / "killed"
    log = tmp_path / "output"
    with log.open("wb") as output:
        started = subprocess.Popen([*NESTFL, *SMOKE, "--run-dir", str(run), "--workers", "2"],
                                   stdout=output, stderr=subprocess.STDOUT)  # fmt: skip
    checkpoints = run / "checkpoints"
    while not list(checkpoints.glob("round-000001*")) and started.poll() is None:
        time.sleep(0.05)
    below = descendants(started.pid)
    servers = [pid for pid, command in below if "nestfl.launching.driver" in command]
    for pid in servers:
        os.kill(pid, signal.SIGKILL)
    assert servers, f"among {below}, after:\n{log.read_text()}"
    assert started.wait(timeout=300) != 0
    assert not (run / "summary.json").exists()
    done = nestfl("run", "--resume", str(run), "--workers", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert_same_weights(finished, run)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2, 3]


def test_where_a_clients_process_dies_the_run_goes_on_once_by_itself(
    finished: Path, tmp_path: Path
) -> None:
    run = tmp_path / "died"
    log = tmp_path / "output"
    with log.open("wb") as output:
        started = subprocess.Popen(
            [*NESTFL, *SMOKE, "min_replies=1.0", "--run-dir", str(run), "--workers", "1"],
            stdout=output, stderr=subprocess.STDOUT)  # fmt: skip
    while not list((run / "checkpoints").glob("round-000001*")) and started.poll() is None:
        time.sleep(0.05)
    actors = [pid for pid, command in descendants(started.pid) if "ClientAppActor" in command]
    assert actors, log.read_text()
    for pid in actors:
        os.kill(pid, signal.SIGKILL)
    assert started.wait(timeout=500) == 0, log.read_text()
    assert "processes of clients died after round " in log.read_text()
    assert f"Going on from the last checkpoint, once: resume={run}" in log.read_text()
    assert_same_weights(finished, run)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2, 3]
