"""The best checkpoint: its round, also after kills, damage and resumed runs."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message
from torch import Tensor

from nestfl.launching.launched_run import checkpoints_in
from protocol.work import Work
from server_app.record import checkpoint
from server_app.record.checkpoint import BestCheckpoint, Checkpoint, CheckpointError, load_best
from server_app.trained_level import load_level
from tests.support.federations import federate_in
from tests.support.grids import InProcessGrid


def metrics(round: int, score: float | None) -> dict[str, Any]:
    return {"round": round, **({} if score is None else {"validation": score})}


def tensors(round: int) -> dict[str, Tensor]:
    return {"w": torch.full((100,), float(round))}


def considered(run: Path, scores: Mapping[int, float | None], best: BestCheckpoint) -> None:
    for number, score in scores.items():
        state = {"metrics": metrics(number, score)}
        checkpoint.save(run / "checkpoints", number, tensors(number), state)
        best.consider(state["metrics"], partial(tensors, number))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Rounds 1 to 5, of which the second and the fourth are equally the best."""
    scores = {1: 0.5, 2: 0.8, 3: None, 4: 0.8, 5: 0.7}
    considered(tmp_path, scores, BestCheckpoint(tmp_path / "checkpoints"))
    return tmp_path


def test_of_language_models_the_lowest_perplexity_is_the_best(tmp_path: Path) -> None:
    best = BestCheckpoint(tmp_path)
    perplexities = {1: None, 2: 90.0, 3: 80.0, 4: 85.0}  # null: it was infinite
    for number, value in perplexities.items():
        found = {**metrics(number, 0.5 + number / 10), "validation_perplexity": value}
        best.consider(found, partial(tensors, number))
    assert best.metrics is not None
    assert best.metrics["round"] == 3


def kept(run: Path) -> tuple[int, float, float]:
    found = load_best(run)
    return found.round, found.state["metrics"]["validation"], found.tensors["w"][0].item()


def going_on(run: Path, start: Checkpoint) -> BestCheckpoint:
    best = BestCheckpoint(run / "checkpoints")
    best.go_on(start)
    return best


def of_round(run: Path, round: int, score: float | None) -> Checkpoint:
    return Checkpoint(run / "x", round, tensors(round), {"metrics": metrics(round, score)})


def test_the_earliest_of_the_highest_scores_is_kept_beside_the_newest(run: Path) -> None:
    assert kept(run) == (2, 0.8, 2.0)
    names = sorted(file.name for file in (run / "checkpoints").iterdir())
    assert names == ["best.safetensors", "round-000004.safetensors", "round-000005.safetensors"]
    assert checkpoint.load(run).round == 5
    assert [file.name for file in checkpoints_in(run)] == names[1:]


def test_a_resumed_run_has_the_kept_round_to_beat(run: Path) -> None:
    best = going_on(run, checkpoint.load(run))
    considered(run, {6: 0.8}, best)
    assert kept(run) == (2, 0.8, 2.0)
    considered(run, {7: 0.9}, best)
    assert kept(run) == (7, 0.9, 7.0)


def test_a_best_round_after_the_one_gone_on_from_is_forgotten(run: Path) -> None:
    best = going_on(run, of_round(run, 1, None))
    assert best.metrics is None
    with pytest.raises(CheckpointError, match="has no best checkpoint"):
        load_best(run)
    considered(run, {2: 0.1}, best)
    assert kept(run) == (2, 0.1, 2.0)


def test_the_round_gone_on_from_counts_if_a_kill_kept_it_from_being_kept(run: Path) -> None:
    going_on(run, of_round(run, 6, 0.75))
    assert kept(run) == (2, 0.8, 2.0)
    assert going_on(run, of_round(run, 6, 0.85)).metrics == metrics(6, 0.85)
    assert kept(run) == (6, 0.85, 6.0)


def test_a_damaged_best_is_said_and_replaced(
    run: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = run / "checkpoints" / "best.safetensors"
    file.write_bytes(file.read_bytes()[:-8])
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)  # to pytest
    best = going_on(run, of_round(run, 5, None))
    assert "best.safetensors is not a whole checkpoint" in caplog.text
    with pytest.raises(CheckpointError, match="is not a whole checkpoint"):
        load_best(run)
    considered(run, {6: 0.1}, best)
    assert kept(run) == (6, 0.1, 6.0)


# --- a whole run ------------------------------------------------------------------------------

SCORES = {1: 0.5, 2: 0.75, 3: 0.25}


def scored(client: int, message: Message, reply: Message) -> Message:
    if message.metadata.message_type == "evaluate":
        work = Work.read(message.content)
        if work.part == "validation":
            reply.content.metric_records["metrics"]["accuracy"] = [SCORES[work.round]]
    return reply


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    overrides = "name=mine rounds=3 evaluate.every=1 checkpoint.keep=3 model.norm=bn-static "
    overrides += "dataset.max_train=120"
    federate_in(folder)(overrides, InProcessGrid(4, scored))
    return folder / "mine"


def test_a_level_of_the_best_round_is_loaded(finished: Path) -> None:
    best = load_level(finished, 2, best=True)
    same = load_level(finished / "checkpoints" / "round-000002.safetensors", 2)
    newest = load_level(finished, 2)
    assert (best.round, best.validation, newest.round) == (2, 0.75, 3)
    weights, expected, other = (each.net.state_dict() for each in (best, same, newest))
    assert all(torch.equal(weights[name], tensor) for name, tensor in expected.items())
    assert not torch.equal(weights["conv1.weight"], other["conv1.weight"])
    assert not best.outdated_statistics


def test_the_summary_tells_the_best_round_and_its_test_scores(finished: Path) -> None:
    lines = [json.loads(line) for line in (finished / "metrics.jsonl").open()]
    summary = json.loads((finished / "summary.json").read_text())
    assert [line["validation"] for line in lines] == [0.5, 0.75, 0.25]
    told = {name: lines[1][name] for name in ("round", "validation", "worst", "mean")}
    assert summary["best"] == told
    assert summary["validation"] == 0.25


def test_a_run_goes_on_from_its_best_checkpoint_as_from_any_other(
    finished: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(finished, tmp_path / "mine")
    expected = checkpoint.load(run).tensors
    start = run / "checkpoints" / "best.safetensors"
    federate_in(tmp_path)(f"resume={start}", InProcessGrid(4, scored))
    again = checkpoint.load(run)
    assert again.round == 3
    assert all(torch.equal(again.tensors[name], tensor) for name, tensor in expected.items())
    assert load_best(run).round == 2
    assert json.loads((run / "summary.json").read_text())["best"]["round"] == 2


def test_a_run_killed_before_its_best_round_was_kept_ends_with_the_same(
    finished: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(finished, tmp_path / "mine")
    folder = run / "checkpoints"
    first = checkpoint.load(folder / "round-000001.safetensors")
    checkpoint.write(folder / "best.safetensors", 1, first.tensors, first.state)
    (folder / "round-000003.safetensors").unlink()
    (run / "summary.json").unlink()
    federate_in(tmp_path)(f"resume={run}", InProcessGrid(4, scored))
    expected, found = load_best(finished), load_best(run)
    assert (found.round, found.state) == (expected.round, expected.state)
    assert all(torch.equal(found.tensors[name], t) for name, t in expected.tensors.items())
