"""`nestfl run` in an existing Ray cluster, with plugins that the cluster does not have."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.test_deployment import free_port
from tests.support.own_code import METHOD, NETWORK, changed, saved
from tests.support.simulations import NESTFL, assert_same_weights, nestfl, weights

pytestmark = pytest.mark.processes

SHORT = (
    *("run", "model=own", "strategy=rolling", "fleet=small", "rounds=1", "train.epochs=1"),
    *("dataset.max_train=80", "dataset.max_test=20", "strategy.tolerance=0.4", "report=false"),
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, str]]:
    """Yield the environment of a cluster of one machine."""
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    ray = Path(sys.executable).with_name("ray")
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as folder:
        log = Path(folder, "log")
        asked = (f"--port={free_port()}", "--node-ip-address=127.0.0.1", "--num-cpus=2")
        with log.open("wb") as output:
            head = subprocess.Popen(
                [str(ray), "start", "--head", "--block", "--include-dashboard=false",
                 "--ray-client-server-port", str(free_port()), "--min-worker-port=0",
                 "--max-worker-port=0", f"--temp-dir={folder}/ray", *asked],
                env=os.environ | token, stdout=output, stderr=subprocess.STDOUT,
                cwd=folder, start_new_session=True,
            )  # fmt: skip
        try:
            end, started = time.monotonic() + 120, None
            while started is None:
                assert head.poll() is None, log.read_text()
                assert time.monotonic() < end, log.read_text()
                time.sleep(0.2)
                started = re.search("ray start --address='(.*)'", log.read_text())
            yield token | {"RAY_ADDRESS": started[1]}
        finally:
            os.killpg(head.pid, signal.SIGTERM)
            head.wait(30)


def test_runs_at_a_time_bring_each_its_own_plugins(cluster: dict[str, str], tmp_path: Path) -> None:
    wider = changed("slice.channels(12)", "slice.channels(16)")
    files = [saved(tmp_path / "one", NETWORK + METHOD), saved(tmp_path / "two", wider + METHOD)]
    runs = [tmp_path / "first", tmp_path / "second"]
    started = [
        subprocess.Popen(
            [*NESTFL, *SHORT, "--plugin", str(file), "--run-dir", str(run)],
            env=os.environ | cluster, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for file, run in zip(files, runs, strict=True)
    ]  # fmt: skip
    for process in started:
        said, _ = process.communicate(timeout=300)
        assert process.returncode == 0, said
    heads = [t for run in runs for name, t in weights(run).items() if name.endswith("fc.weight")]
    assert [head.shape[1] for head in heads] == [12, 16]
    local = nestfl(*SHORT, "engine=local", "--plugin", str(files[1]), "--run-dir", f"{tmp_path}/l")
    assert local.returncode == 0, local.stderr
    assert_same_weights(runs[1], tmp_path / "l")


def test_what_a_cluster_decides_itself_is_refused(cluster: dict[str, str]) -> None:
    refused = nestfl("run", "fleet=small", "--workers", "1", **cluster)
    assert refused.returncode == 2
    assert "--workers is for a Ray of the run's own" in refused.stderr


def test_a_cluster_that_does_not_answer_is_told_at_once() -> None:
    address = f"127.0.0.1:{free_port()}"
    refused = nestfl("run", "fleet=small", RAY_ADDRESS=address)
    assert refused.returncode == 2
    assert f"no Ray cluster answers at RAY_ADDRESS={address}" in refused.stderr
