"""`nestfl run` with the real app in the real Ray simulation."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
import torch

from server_app.config.composing import load as load_config
from server_app.record.checkpoint import load

pytestmark = pytest.mark.processes

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = (
    *("client_app", "conf", "data", "inference", "models", "nestfl", "protocol", "server_app"),
    *("strategies", "training"),
)

NESTFL = [sys.executable, "-c", "from nestfl.cli import app; app()"]
SMOKE = ["run", "experiment=smoke", "rounds=3"]


def nestfl(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*NESTFL, *arguments], capture_output=True, text=True, timeout=580,
                          env=os.environ | environment)  # fmt: skip


def weights(run: Path) -> dict[str, torch.Tensor]:
    return dict(load(run).tensors)


def assert_same_weights(first: Path, second: Path) -> None:
    one, other = weights(first), weights(second)
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


def descendants(ancestor: int) -> list[tuple[int, str]]:
    """The processes below one, as (pid, command); a child's pid may be the smaller."""
    # -ww: with COLUMNS set, ps would cut the commands off there.
    listing = subprocess.run(["ps", "-wweo", "pid=,ppid=,args="], capture_output=True, text=True)
    children: dict[int, list[tuple[int, str]]] = {}
    for line in listing.stdout.splitlines():
        pid, parent, *command = line.split(None, 2)
        children.setdefault(int(parent), []).append((int(pid), " ".join(command)))
    found, left = [], [ancestor]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += [pid for pid, _ in below]
    return found


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "whole"
    done = nestfl(*SMOKE, "--run-dir", str(run), "--workers", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    return run


def test_a_run_leaves_its_whole_record(finished: Path) -> None:
    lines = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2, 3]
    assert set(lines[-1]["levels"]) == {"1", "2", "3", "4"}
    assert {"local", "global", "worst", "mean"} <= lines[-1].keys()
    assert (finished / "config.yaml").exists()
    assert (finished / "summary.json").exists()
    assert list((finished / "tensorboard").iterdir())
    assert weights(finished)["round"] == 3


def test_the_local_engine_gives_the_same_weights(finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "local"
    more_threads = {"OMP_NUM_THREADS": "2"}  # which the server may use, but no client
    done = nestfl(*SMOKE, "engine=local", "--run-dir", str(run), **more_threads)
    assert done.returncode == 0, done.stdout + done.stderr
    assert_same_weights(finished, run)


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
    servers = [pid for pid, command in below if "flwr-simulation" in command]
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


def test_a_wrong_override_ends_at_once_with_the_choices() -> None:
    done = nestfl("run", "strategy=nope")
    assert done.returncode == 2
    assert "unknown strategy 'nope'; choose from decoupled, fedavg, heterofl" in done.stderr


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


AS_NOBODY = ["--reuid=65534", "--regid=65534", "--clear-groups"]
READ_ALL = ["--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"]
"""Python itself may be in root's home: another user may read here what root may, but write none."""


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become another user")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="there is no setpriv")
def test_a_checkout_of_another_user_can_be_run(finished: Path) -> None:
    with tempfile.TemporaryDirectory() as root:  # pytest's own are closed to others
        checkout, home = Path(root, "checkout"), Path(root, "home")
        for name in (*PACKAGES, "pyproject.toml"):
            copy = shutil.copytree if (REPOSITORY / name).is_dir() else shutil.copy
            checkout.mkdir(exist_ok=True)
            copy(REPOSITORY / name, checkout / name)
        Path(root).chmod(0o755)
        home.mkdir()
        os.chown(home, 65534, 65534)
        before = sorted(checkout.rglob("*"))
        environment = os.environ | {
            "PYTHONPATH": str(checkout),
            "HOME": str(home),
            "NESTFL_CACHE": str(home / "cache"),
        }
        done = subprocess.run(
            ["setpriv", *AS_NOBODY, *READ_ALL, *NESTFL, *SMOKE, "--workers", "1"],
            capture_output=True, text=True, timeout=580, cwd=home, env=environment)  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        (run,) = (home / "runs").iterdir()
        assert_same_weights(finished, run)
        assert sorted(checkout.rglob("*")) == before
        assert load_config(run / "config.yaml").output == str(home / "runs")
