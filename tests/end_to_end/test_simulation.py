"""`nestfl run` with the real app in the real Ray simulation."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from server_app.config.composing import load as load_config
from tests.support.simulations import NESTFL, SMOKE, assert_same_weights, nestfl, weights

pytestmark = pytest.mark.processes

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = (
    *("client_app", "conf", "data", "inference", "models", "nestfl", "plugins", "protocol"),
    *("server_app", "strategies", "training"),
)


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


def test_a_wrong_override_ends_at_once_with_the_choices() -> None:
    done = nestfl("run", "strategy=nope")
    assert done.returncode == 2
    assert "unknown strategy 'nope'; choose from decoupled, depthfl, fedavg" in done.stderr


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
