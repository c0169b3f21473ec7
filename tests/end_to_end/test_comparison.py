"""`nestfl compare` in processes: killed, stopped, failed, and resumed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from server_app.record.files import LAUNCHER_LOCK, Lock
from tests.support.own_code import METHOD, saved

pytestmark = pytest.mark.processes

ROOT = Path(__file__).resolve().parents[2]

SMALL = (
    *("fleet=small", "rounds=4", "dataset.max_train=120", "dataset.max_test=40", "train.epochs=1"),
    *("evaluate.every=1", "model=resnet20", "name=small"),
)
TWO = ("strategy=heterofl,fedavg", *SMALL)
TABLES = ("table.json", "table.csv", "table.md")


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "nestfl", "compare", *arguments]


def compare(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    return subprocess.run(
        command(*arguments),
        cwd=folder, env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def rounds_in(run: Path) -> int:
    file = run / "metrics.jsonl"
    return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("uninterrupted")
    done = compare(folder, *TWO)
    assert done.returncode == 0, done.stderr
    return folder / "runs" / "small"


def begun(comparison: Path) -> bool:
    """Tell whether a run has its directory, and nothing else is certain."""
    return any(comparison.glob("strategy-*/config.yaml"))


def trained(comparison: Path) -> bool:
    """Tell whether a run has come to its second round."""
    return any(rounds_in(run) >= 1 for run in comparison.glob("strategy-*"))


def ended(comparison: Path) -> bool:
    """Tell whether a run has finished, and the other has not."""
    return any(comparison.glob("strategy-*/summary.json"))


def interrupt(folder: Path, request: signal.Signals, moment: Callable[[Path], bool]) -> int:
    """Start the comparison, one run at a time, and send it a signal when the moment has come."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command(*TWO, "--jobs", "1"),
        cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    end = time.monotonic() + 300
    while not moment(folder / "runs" / "small") and time.monotonic() < end:
        assert process.poll() is None, "it ended before it could be interrupted"
        time.sleep(0.05)
    process.send_signal(request)
    return process.wait(60)


@pytest.mark.parametrize(
    ("request_", "moment"),
    [
        (signal.SIGKILL, begun),
        (signal.SIGKILL, trained),
        (signal.SIGKILL, ended),
        (signal.SIGINT, trained),
    ],
)
def test_an_interrupted_comparison_ends_with_the_same_table(
    uninterrupted: Path, tmp_path: Path, request_: signal.Signals, moment: Callable[[Path], bool]
) -> None:
    code = interrupt(tmp_path, request_, moment)
    assert code == (-9 if request_ == signal.SIGKILL else 130)
    done = compare(tmp_path, *TWO)
    assert done.returncode == 0, done.stderr
    for name in TABLES:
        again = (tmp_path / "runs" / "small" / name).read_text()
        assert again == (uninterrupted / name).read_text()


def test_what_has_finished_is_not_run_again_and_one_more_strategy_is_added(
    uninterrupted: Path, tmp_path: Path
) -> None:
    shutil.copytree(uninterrupted, tmp_path / "runs" / "small")
    runs = tmp_path / "runs" / "small"
    before = {run: run.stat().st_mtime_ns for run in runs.glob("*/metrics.jsonl")}
    done = compare(tmp_path, "strategy=heterofl,fedavg,decoupled", *SMALL)
    assert done.returncode == 0, done.stderr
    assert "3 runs, 2 of which are done" in done.stdout
    assert {run: run.stat().st_mtime_ns for run in before} == before
    assert done.stdout.splitlines()[-1] == f"report.html: {runs / 'report.html'}"
    found = json.loads((runs / "table.json").read_text())
    chosen = [group["choices"]["strategy"] for group in found["groups"]]
    assert chosen == ["heterofl", "fedavg", "decoupled"]


def test_what_a_run_cannot_start_from_is_told_before_any_of_them(tmp_path: Path) -> None:
    done = compare(tmp_path, "strategy=fedavg", "dataset.path=null,nowhere", *SMALL, "--jobs", "1")
    assert done.returncode == 2
    assert "nowhere does not exist" in done.stderr
    assert list(tmp_path.glob("runs/small/*/metrics.jsonl")) == []


RAISES = """

def window_of(self: Rolling, client: int, round: int) -> Window:
    if round == 2:
        raise KeyError("round 2")
    return Window()


Rolling.window_of = window_of
"""


def test_a_run_that_fails_in_a_round_does_not_stop_the_others(tmp_path: Path) -> None:
    plugin = saved(tmp_path, METHOD + RAISES)
    short = [each for each in SMALL if each != "rounds=4"]
    chosen = ("strategy=rolling,fedavg", "rounds=2", *short)
    done = compare(tmp_path, "--plugin", str(plugin), *chosen, "--jobs", "1")
    runs = tmp_path / "runs" / "small"
    assert done.returncode == 1
    assert "strategy=rolling failed: " in done.stderr
    assert "KeyError: 'round 2'" in done.stderr
    assert "mine.py, line " in done.stderr
    assert {name: rounds_in(runs / f"strategy-{name}") for name in ("rolling", "fedavg")} == {
        "rolling": 1, "fedavg": 2
    }  # fmt: skip
    assert (runs / "table.json").exists()


def test_runs_of_other_settings_are_not_taken_for_this_comparisons(uninterrupted: Path) -> None:
    done = compare(uninterrupted.parent.parent, *TWO, "train.lr=0.05")
    assert done.returncode == 2
    assert "is of other settings: train.lr is 0.1 there, 0.05 now" in done.stderr


def test_a_comparison_that_is_under_way_cannot_be_started_again(uninterrupted: Path) -> None:
    lock = Lock(uninterrupted / LAUNCHER_LOCK)
    try:
        done = compare(uninterrupted.parent.parent, *TWO)
    finally:
        lock.close()
    assert done.returncode == 2
    assert "is in use by process" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["strategy=scalefl,herofl"], "strategy=herofl: unknown strategy 'herofl'; did you mean"),
        (["rounds=3"], "nothing to compare"),
        (["seed=0,1", "output=..", "name=full"], "is there, and no comparison: give another name="),
        (["seed=0,1", "--baseline", "strategy=fedavg"], "none, seed alone has several values"),
        (
            ["strategy=scalefl,fedavg", "--baseline", "strategy=heterofl"],
            "expected one of the choices that are compared: strategy=scalefl, strategy=fedavg",
        ),
    ],
)
def test_wrong_comparisons_are_refused_before_anything_runs(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "photo.png").touch()
    (tmp_path / "here").mkdir()
    done = compare(tmp_path / "here", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert not list(tmp_path.glob("here/runs"))  # nothing was made
    assert [file.name for file in (tmp_path / "full").iterdir()] == ["photo.png"]
