"""Runs from pre-trained weights first report the scores of these weights, cut into levels."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch
from flwr.app import Message
from rich.console import Console
from safetensors.torch import save_file

from models import build
from nestfl.watching.progress import RunState
from protocol.work import Work
from server_app.record.metrics import round_line
from server_app.record.run_record import RunRecord
from server_app.record.summary import show
from tests.support.federations import Federate, federate_in, untimed
from tests.support.grids import InProcessGrid


@pytest.fixture
def federate(tmp_path: Path) -> Federate:
    return federate_in(tmp_path)


@pytest.fixture
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backbone of resnet20 for digits, of another seed than any run's."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(99)
        net = build("resnet20", 10, in_channels=1, norm="bn-running")
    file = tmp_path_factory.mktemp("weights") / "resnet20.safetensors"
    save_file(net.state_dict(), file)
    return file


def test_the_start_from_pre_trained_weights_is_evaluated_as_round_0(
    federate: Federate, weights: Path, tmp_path: Path
) -> None:
    _, lines = federate(f"name=run model.weights={weights}")
    assert [line["round"] for line in lines] == [0, 1, 2]
    assert set(lines[0]["levels"]) == {"1", "2", "3", "4"}
    assert lines[0]["worst"] <= lines[0]["mean"]
    assert "levels" not in lines[1]  # evaluate.every=0
    files = [file.name for file in (tmp_path / "run" / "checkpoints").iterdir()]
    newest = ["round-000001.safetensors", "round-000002.safetensors"]
    assert sorted(files) == ["best.safetensors", *newest]


def test_a_start_from_chance_has_no_round_0(federate: Federate) -> None:
    _, lines = federate()
    assert [line["round"] for line in lines] == [1, 2]


@pytest.mark.parametrize("norm", ["bn", "bn-static", "bn-running"])
def test_round_0_changes_no_bit_of_the_run(
    norm: str, federate: Federate, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = f"model.weights={weights} model.norm={norm}"
    with_it, lines = federate(overrides)
    monkeypatch.setattr(
        "strategies.round.NestedStrategy._evaluation_of_the_start",
        lambda self, grid: {"round": 0},
    )
    without, others = federate(overrides)
    assert list(map(untimed, lines[1:])) == list(map(untimed, others[1:]))
    assert all(torch.equal(with_it.state[name], without.state[name]) for name in without.state)


def test_static_norms_have_statistics_in_round_0(federate: Federate, weights: Path) -> None:
    grid = InProcessGrid(4)
    _, lines = federate(f"model.weights={weights} model.norm=bn-static", grid)
    asked = [Work.read(m.content).round for m in grid.sent
             if m.metadata.message_type == "query.statistics"]  # fmt: skip
    assert asked == [0] * 4 + [2] * 4
    assert lines[0]["asked"]["statistics"]["answered"] == 4


def test_a_resumed_run_keeps_round_0_and_does_not_repeat_it(
    federate: Federate, weights: Path, tmp_path: Path
) -> None:
    class KilledError(BaseException):
        pass

    def killed_in_round_2(client: int, message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "train" and Work.read(message.content).round == 2:
            raise KilledError
        return reply

    overrides = f"model.weights={weights} train.schedule=constant"
    whole, lines = federate(overrides)
    with pytest.raises(KilledError):
        federate(f"{overrides} name=killed", InProcessGrid(4, killed_in_round_2))
    resumed, resumed_lines = federate(f"resume={tmp_path / 'killed'}")
    assert list(map(untimed, resumed_lines)) == list(map(untimed, lines))
    assert all(torch.equal(whole.state[name], resumed.state[name]) for name in whole.state)


def test_the_table_and_the_progress_show_the_start(
    federate: Federate, weights: Path, tmp_path: Path
) -> None:
    _, lines = federate(f"name=run model.weights={weights}")
    record, output = RunRecord(tmp_path / "run"), io.StringIO()
    summary = json.loads(record.summary_file.read_text())
    starts = {n: level["accuracy"] for n, level in lines[0]["levels"].items()}
    assert {n: level["start"] for n, level in summary["levels"].items()} == starts
    assert summary["rounds"] == 2
    show(record, summary, Console(file=output))
    rows = [line.split() for line in output.getvalue().splitlines()]
    assert rows[0][:2] == ["level", "start"]
    assert [row[1] for row in rows[1:5]] == [f"{start:.2%}" for start in starts.values()]
    state = RunState(rounds=2)
    state.take_metrics(lines[0], now=0)
    assert state.round == 0
    assert round_line(lines[0], state.rounds).startswith("round 0/2, accuracy of level 1: ")
