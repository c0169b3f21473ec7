"""The place of a run's record and log, without Flower's processes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from flwr.app import Context, Error, Message, RecordDict

from nestfl.commands.run import run
from nestfl.launching.request import Request
from nestfl.watching.progress import RunState
from server_app import app as server
from server_app.config.composing import compose
from server_app.config.typed import ConfigError
from server_app.record import checkpoint
from server_app.record.run_record import RunRecord
from strategies.federation import FederationError
from tests.support.federations import federate_in
from tests.support.grids import InProcessGrid


def test_a_run_directory_may_have_any_name(tmp_path: Path) -> None:
    run_dir = tmp_path / "my runs" / "the first, of März"
    overrides = (
        "strategy=fedavg fleet.clients=2 clients_per_round=2 rounds=1 train.epochs=1 "
        "dataset.max_train=40 dataset.max_test=20"
    )
    run_config: dict[str, str | bool | int | float] = {"hydra": overrides, "run-dir": str(run_dir)}
    server.app(InProcessGrid(2), Context(1, 0, {}, RecordDict(), run_config))
    assert json.loads((run_dir / "summary.json").read_text())["rounds"] == 1


def test_a_run_never_writes_to_the_directory_of_another(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ConfigError, match=r"exists; give another name$"):
        RunRecord.create(compose(), tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


SAYS = """
import json, pathlib, sys, time
folder = pathlib.Path(sys.argv[2])
(folder / "unfinished").write_text(json.dumps({"error": None, "choice": json.loads(sys.argv[1])}))
(folder / "unfinished").rename(folder / "answer.json")
while not (folder / "go.json").exists():
    time.sleep(0.02)
with open(json.loads((folder / "go.json").read_text())["log"], "a") as log:
    log.write("it had nothing to do\\n")
"""


@pytest.fixture
def app_dir(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text("[tool.flwr.app.components]")
    return tmp_path


def simulated_by(monkeypatch: pytest.MonkeyPatch, script: str, **choice: object) -> None:
    """Let another process be that of the simulation."""
    told = json.dumps({"nodes": 1, **choice})
    monkeypatch.setattr("nestfl.launching.flower.DRIVER", [sys.executable, "-c", script, told])


def test_a_resumed_run_keeps_the_log_and_tells_of_its_own_failure(
    app_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    simulated_by(monkeypatch, SAYS)
    first = app_dir / "first"
    first.mkdir()
    (first / "config.yaml").touch()
    checkpoint.save(first / checkpoint.FOLDER, 1, {}, {})
    log = first / "flower.log"
    log.write_text("Simulation raised an exception\nTraceback (most recent call last):\nOld\n")
    assert run(Request(resume=first, app_dir=app_dir, quiet=True)) == 1
    kept, added = log.read_text().split("Old\n")
    assert kept.startswith("Simulation raised")
    assert added == "it had nothing to do\n"
    told = capsys.readouterr().err
    assert "the log's last lines" in told
    assert "Old" not in told


def test_a_start_that_fails_leaves_nothing_that_blocks_the_next_one(
    app_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    simulated_by(monkeypatch, "raise SystemExit('no Ray here')")
    for _ in range(2):
        assert run(Request([f"output={app_dir}/runs"], app_dir=app_dir, quiet=True)) == 2
        assert "Flower did not start:\nno Ray here" in capsys.readouterr().err
        assert not (app_dir / "runs").exists()


def test_a_log_that_says_why_a_start_failed_is_kept_and_does_not_block(
    app_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    simulated_by(monkeypatch, SAYS, output=str(app_dir / "runs"), name="mine")
    for attempt in (1, 2):
        assert run(Request(app_dir=app_dir, quiet=True)) == 1
        told = capsys.readouterr().err
        assert f"The full log: {app_dir / 'runs' / 'mine' / 'flower.log'}" in told
        assert "--resume" not in told
        log = (app_dir / "runs" / "mine" / "flower.log").read_text()
        assert log.count("it had nothing to do") == attempt


def test_a_run_that_dead_processes_end_says_so(tmp_path: Path) -> None:
    def dies(client: int, message: Message, reply: Message) -> Message:
        if message.metadata.message_type != "train":
            return reply
        return Message(Error(0, "The actor died unexpectedly"), reply_to=message)

    with pytest.raises(FederationError, match="4 crashed"):
        federate_in(tmp_path)("name=died", InProcessGrid(4, dies))
    state = RunState()
    for line in (tmp_path / "died" / "progress.jsonl").read_text().splitlines():
        state.take_event(json.loads(line), now=0)
    assert state.crashed == 4
    assert "4 crashed" in str(state.reason)
