"""`nestfl run engine=local`, and its Grid: the real apps in this process, without Ray."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
from bdb import BdbQuit
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner, Result
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp.strategy import FedAvg

from client_app.app import app as client
from nestfl import local_engine
from nestfl.commands import app
from nestfl.local_engine import LocalGrid
from protocol.work import Work
from server_app import app as server
from server_app.config.composing import compose, load
from server_app.record import checkpoint
from server_app.record.run_record import RunRecord

SMALL = [
    *("engine=local", "strategy=heterofl", "model.norm=bn", "fleet.clients=2"),
    *("clients_per_round=2", "rounds=3", "train.epochs=1", "train.batch_size=64"),
    *("dataset.max_train=80", "dataset.max_test=40", "evaluate.every=0"),
]
Client = Callable[[Message, Context], Message]


def nestfl(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["run", *arguments])


def weights(run: Path) -> dict[str, torch.Tensor]:
    return dict(checkpoint.load(run).tensors)


def assert_same_weights(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


def rounds_of(run: Path) -> list[int]:
    return [line["round"] for line in RunRecord(run).metrics()]


def in_round_2(act: Callable[[], None]) -> Client:
    """The real client, which acts before it trains in round 2."""

    def acting(message: Message, context: Context) -> Message:
        if message.metadata.message_type == "train" and Work.read(message.content).round == 2:
            act()
        return client(message, context)

    return acting


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    run = tmp_path_factory.mktemp("runs") / "whole"
    return run, nestfl(*SMALL, "--run-dir", str(run))


# --- a directory that vanishes -------------------------------------------------------------------


@pytest.mark.parametrize("replaced", [False, True])
def test_a_run_whose_directory_vanishes_fails_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    run = tmp_path / "runs" / "gone"

    def vanish() -> None:
        if run.exists():
            shutil.rmtree(run)
            if replaced:
                run.mkdir()

    monkeypatch.setattr(local_engine, "app", in_round_2(vanish))
    result = nestfl(*SMALL, "--run-dir", str(run))
    assert result.exit_code == 1, result.output
    assert f"the run's directory {run} has vanished" in result.stderr
    assert "it cannot be resumed" in result.stderr
    assert not (run / "checkpoints").exists()


# --- the command ---------------------------------------------------------------------------------


def test_a_run_leaves_its_whole_record_and_shows_its_rounds_and_its_summary(
    finished: tuple[Path, Result],
) -> None:
    run, result = finished
    assert (result.exit_code, result.stderr) == (0, "")
    first, warning, *rounds = result.stdout.splitlines()
    assert warning.startswith("Warning: no client holds level 2 (untrained)")
    assert first == f"2 clients in this process on {_device()}, run in {run}"
    assert [line.split(",")[0] for line in rounds[:3]] == ["round 1/3", "round 2/3", "round 3/3"]
    assert rounds[3].split()[:2] == ["level", "exit"]
    assert result.stdout.count(f"run:         {run}") == 1
    assert rounds_of(run) == [1, 2, 3]
    assert json.loads((run / "summary.json").read_text())["rounds"] == 3
    assert load(run / "config.yaml").engine == "local"
    assert "round 3/3, 2/2 replies" in (run / "flower.log").read_text()
    assert any((run / "tensorboard").iterdir())


def _device() -> str:
    from training.devices import choose_device

    return str(choose_device("auto"))


def test_the_weights_are_those_of_the_server_app_on_the_grid(
    finished: tuple[Path, Result], tmp_path: Path
) -> None:
    strategy = server.run(LocalGrid(2), compose(SMALL), tmp_path / "plain")
    assert_same_weights(dict(strategy.state_dict()), weights(finished[0]))


def test_ctrl_c_stops_a_run_which_resumes_to_the_same_weights(
    finished: tuple[Path, Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "stopped"
    heard = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patched:
        patched.setattr(local_engine, "app", in_round_2(lambda: signal.raise_signal(signal.SIGINT)))
        stopped = nestfl(*SMALL, "--run-dir", str(run), "--quiet")
    assert (stopped.exit_code, stopped.stdout) == (130, "")
    (file,) = (run / "checkpoints").iterdir()
    assert stopped.stderr == (
        f"nestfl run: stopped after round 1 of 3. The checkpoint is {file}; "
        f"go on with: nestfl run --resume {run}\n"
    )
    assert signal.getsignal(signal.SIGINT) is heard
    resumed = nestfl("--resume", str(run))
    assert resumed.exit_code == 0, resumed.output
    assert resumed.stdout.splitlines()[0].endswith(f"run in {run}, going on after round 1")
    assert rounds_of(run) == [1, 2, 3]
    assert_same_weights(weights(run), weights(finished[0]))


def test_who_leaves_the_debugger_leaves_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def quit_debugger(message: Message, context: Context) -> Message:
        raise BdbQuit

    monkeypatch.setattr(local_engine, "app", quit_debugger)
    result = nestfl(*SMALL, "--run-dir", str(tmp_path / "run"))
    assert result.exit_code == 130
    assert result.stderr == "nestfl run: stopped. No checkpoint was written yet.\n"


def test_a_run_that_fails_says_why_and_logs_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("no space left")

    monkeypatch.setattr(local_engine, "app", in_round_2(fail))
    run = tmp_path / "failed"
    result = nestfl(*SMALL, "--run-dir", str(run), "--quiet")
    assert result.exit_code == 1
    first, reason, *more = result.stderr.splitlines()
    assert first == "nestfl run: the run failed after round 1 of 3"
    assert reason.startswith("  FederationError: round 2: ")
    assert "no space left" in result.stderr
    assert f"  The full log: {run / 'flower.log'}" in more
    assert "an exception: FederationError: round 2: 0 of 2" in (run / "flower.log").read_text()
    assert logging.getLogger("flwr").handlers  # Flower's own again


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["engine=lokal"], "unknown engine 'lokal'; did you mean local? Choose from ray, local"),
        ([*SMALL, "--workers", "2"], "--workers and --gpus-per-client are for engine=ray"),
        ([*SMALL, "--gpus-per-client", "0"], "--workers and --gpus-per-client are for engine=ray"),
        ([*SMALL, "model=nosuch"], "unknown model 'nosuch'; choose from"),
    ],
)
def test_what_cannot_be_run_is_told_before_anything_is_started(
    arguments: list[str], told: str, tmp_path: Path
) -> None:
    result = nestfl(*arguments, "--run-dir", str(tmp_path / "run"))
    assert result.exit_code == 2
    assert result.stderr.startswith(f"nestfl run: {told}")
    assert not (tmp_path / "run").exists()


def test_a_run_that_was_saved_without_an_engine_is_resumed_on_any(
    finished: tuple[Path, Result], tmp_path: Path
) -> None:
    saved = (finished[0] / "config.yaml").read_text()
    (tmp_path / "config.yaml").write_text(saved.replace("engine: local\n", ""))
    assert compose(f"resume={tmp_path}").engine == "ray"
    assert compose(f"resume={tmp_path} engine=local").engine == "local"


def test_flower_itself_says_that_the_engine_is_not_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "run", lambda *_: None)
    config: dict[str, str | bool | int | float] = {"hydra": f"engine=local output={tmp_path}"}
    server.app(LocalGrid(1), Context(1, 0, {}, RecordDict(), config))
    assert "engine=local is a key of `nestfl run`" in caplog.text


# --- the grid ------------------------------------------------------------------------------------


def question(node: int, kind: str = "query") -> Message:
    return Message(RecordDict(), node, kind)


def answering(log: list[int]) -> Client:
    def answered(message: Message, context: Context) -> Message:
        log.append(int(context.node_config["partition-id"]))
        return Message(RecordDict({"said": ConfigRecord({"number": log[-1]})}), reply_to=message)

    return answered


def test_messages_are_made_one_by_one_as_replies_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[int] = []
    monkeypatch.setattr(local_engine, "app", answering(log))
    grid, made = LocalGrid(3), []

    def messages() -> Iterator[Message]:
        for node in grid.get_node_ids():
            made.append(node)
            yield question(node)

    replies = iter(grid.send_and_receive(messages()))
    assert (made, log) == ([], [])
    first = next(replies)
    assert first.metadata.src_node_id == made[0]
    assert (len(made), log) == (1, [0])
    assert [reply.content["said"]["number"] for reply in replies] == [1, 2]
    assert grid.waiting == {}


def test_after_the_timeout_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[int] = []
    monkeypatch.setattr(local_engine, "app", answering(log))
    grid = LocalGrid(2)
    asked = map(question, grid.get_node_ids())
    assert list(grid.send_and_receive(asked, timeout=0.0)) == []
    assert log == []


def test_a_message_to_nobody_is_lost_and_a_reply_is_pulled_once() -> None:
    grid = LocalGrid(1)
    (node,) = grid.get_node_ids()
    pushed = list(grid.push_messages([question(node + 1), question(node)]))
    assert len(pushed) == 1
    (reply,) = grid.pull_messages(pushed)
    assert reply.metadata.reply_to_message_id == pushed[0]
    assert list(grid.pull_messages(pushed)) == []


def test_a_client_that_raises_is_flowers_error_reply() -> None:
    grid = LocalGrid(1)
    (node,) = grid.get_node_ids()
    (reply,) = grid.send_and_receive([question(node, "train")])  # which lacks the work to do
    assert reply.error.code == 2
    assert "Error: " in str(reply.error.reason)


def test_a_client_has_its_threads_and_the_server_its_own_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = []

    def looking(message: Message, context: Context) -> Message:
        seen.append(os.environ["OMP_NUM_THREADS"])
        torch.set_num_threads(1)
        raise ValueError("seen enough")

    monkeypatch.setattr(local_engine, "app", looking)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for given in ("7", None):
            monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
            if given is not None:
                monkeypatch.setenv("OMP_NUM_THREADS", given)
            grid = LocalGrid(1, cpus_per_client=3)
            assert len(list(grid.send_and_receive(map(question, grid.get_node_ids())))) == 1
            assert seen.pop() == "3"
            assert os.environ.get("OMP_NUM_THREADS") == given
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_flowers_own_strategy_runs_on_the_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    def adding(message: Message, context: Context) -> Message:
        (value,) = message.content.array_records["arrays"].to_numpy_ndarrays()
        content = RecordDict({"metrics": MetricRecord({"num-examples": 1, "loss": 0.5})})
        if message.metadata.message_type == "train":
            added = value + float(context.node_config["partition-id"])
            content["arrays"] = ArrayRecord([added])
        return Message(content, reply_to=message)

    monkeypatch.setattr(local_engine, "app", adding)
    start = ArrayRecord({"value": torch.zeros(1)})
    result = FedAvg().start(LocalGrid(3), start, num_rounds=2)
    (value,) = result.arrays.to_numpy_ndarrays()
    assert value.tolist() == [2.0]  # two rounds, each of which adds the mean of 0, 1 and 2
