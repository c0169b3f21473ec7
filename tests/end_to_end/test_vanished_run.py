"""A run on Ray whose directory is deleted under it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes
SMALL = [
    *("strategy=heterofl", "model.norm=bn", "fleet.clients=2", "rounds=500", "train.epochs=1"),
    *("dataset.max_train=80", "dataset.max_test=40", "evaluate.every=0"),
]


def test_it_fails_and_says_so(tmp_path: Path) -> None:
    run = tmp_path / "gone"
    command = [sys.executable, "-m", "nestfl", "run", *SMALL, "--run-dir", str(run), "--workers=1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            while not (run / "metrics.jsonl").exists():
                assert process.poll() is None, process.communicate()
                time.sleep(0.2)
            shutil.rmtree(run, ignore_errors=True)  # a file may be made meanwhile
            shutil.rmtree(run, ignore_errors=True)
            said, why = process.communicate(timeout=300)
        finally:
            process.kill()
    assert process.returncode == 1
    assert "2 simulated clients" in said.decode().splitlines()[0]
    assert "clients_per_round lowered from 20 to 2" in said.decode().splitlines()[0]
    assert f"the run's directory {run} has vanished" in why.decode()
    assert not (run / "summary.json").exists()
