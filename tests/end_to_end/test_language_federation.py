"""A federation that predicts next words: its perplexity falls, and is shown beside accuracy."""

from __future__ import annotations

import io
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from nestfl.commands import app
from server_app import app as server
from server_app.config.composing import ConfigError, compose
from server_app.record.checkpoint import load_best
from server_app.record.run_record import RunRecord
from server_app.record.summary import show, summarise
from tests.support.grids import InProcessGrid
from training.perplexity import perplexity

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = (
    "model=transformer-micro dataset=docstrings-words dataset.words=300 dataset.max_tokens=16 "
    "dataset.max_train=320 dataset.max_test=32 strategy=heterofl strategy.widths=[0.5,1] "
    "fleet.budgets=[0.5,1] fleet.shares=[1,1] fleet.clients=2 clients_per_round=2 "
    "evaluate.every=1 evaluate.clients_every=1 train.epochs=1 train.schedule=constant"
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunRecord:
    folder = tmp_path_factory.mktemp("runs")
    server.run(InProcessGrid(2), compose(f"{SMALL} rounds=3 output={folder} name=run"))
    return RunRecord(folder / "run")


@pytest.fixture(scope="module")
def lines(run: RunRecord) -> list[dict[str, Any]]:
    return [dict(line) for line in run.metrics()]


def test_perplexity_falls_below_that_of_a_uniform_model(lines: list[dict[str, Any]]) -> None:
    first, *_, last = lines
    assert last["mean_perplexity"] < first["mean_perplexity"]
    assert last["worst_perplexity"] < 300
    assert last["clients"]["replied"] == 2


def test_each_is_of_its_own_loss(lines: list[dict[str, Any]]) -> None:
    last = lines[-1]
    own = [level["perplexity"] for level in last["levels"].values()]
    losses = [level["exits"]["3"]["loss"] for level in last["levels"].values()]
    assert own == [perplexity(loss) for loss in losses]
    assert last["worst_perplexity"] == max(own)
    assert last["mean_perplexity"] == fmean(own)
    by_client = last["scores"]["local_perplexity"]
    assert last["local_perplexity"] == fmean(by_client.values())
    levels = [level["local_perplexity"] for level in last["levels"].values()]
    assert sorted(levels) == sorted(by_client.values())  # one client each
    assert last["validation_perplexity"] == fmean(
        level["validation_perplexity"] for level in last["levels"].values()
    )


def test_the_end_of_a_run_tells_it(run: RunRecord, lines: list[dict[str, Any]]) -> None:
    output = io.StringIO()
    best = min(lines, key=lambda line: line["validation_perplexity"])
    assert load_best(run.directory).round == best["round"]
    show(run, summarise(lines, best), Console(file=output))  # type: ignore[arg-type]
    told = output.getvalue()
    assert "local perplexity" in told
    mean = f"{lines[-1]['mean_perplexity']:.1f}"
    assert f"mean {mean}, local {lines[-1]['local_perplexity']:.1f}" in told
    assert f"validation {best['validation_perplexity']:.1f}" in told
    html = run.report_file.read_text(encoding="utf-8")
    assert "Perplexity of each level" in html
    assert "Perplexity: all levels" in html
    assert mean in html


def test_predict_says_that_it_is_not_for_language_models(run: RunRecord) -> None:
    found = CliRunner().invoke(app, ["predict", str(run.directory)])
    assert found.exit_code != 0
    assert "trained a language model on docstrings-words" in found.output


@pytest.mark.parametrize("strategy", ["nefl", "fedavg", "scalefl"])
def test_other_methods_train_language_models(strategy: str, tmp_path: Path) -> None:
    few = "strategy.tolerance=1 dataset.max_train=32 dataset.max_test=8 rounds=1"
    base = SMALL.replace("strategy=heterofl strategy.widths=[0.5,1]", f"strategy={strategy}")
    server.run(InProcessGrid(2), compose(f"{base} {few} output={tmp_path} name=run"))
    (last,) = RunRecord(tmp_path / "run").metrics()
    assert last["clients"]["replied"] == 2
    assert last["worst_perplexity"] > 1


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ("dataset=digits", "transformer-micro reads language, but the data set digits holds image"),
        ("model=bert-tiny", "bert-tiny reads tokens, but the data set docstrings-words holds lang"),
        ("dataset.partition=classes", "deals out by class, and .* choose one of: iid, sizes"),
        ("model.positions=none", "positions is 'none': expected a whole number"),
    ],
)
def test_wrong_choices_are_told_before_anything_runs(overrides: str, told: str) -> None:
    base = "model=transformer-micro dataset=docstrings-words strategy=heterofl"
    with pytest.raises(ConfigError, match=told):
        compose(f"{base} {overrides}")


@pytest.mark.parametrize("strategy", ["heterofl", "nefl"])
def test_table_3_of_fedfa_runs_scaled_down(strategy: str, tmp_path: Path) -> None:
    row = f"experiment=fedfa_table3_transformer strategy={strategy}"
    full = compose(row)
    assert (full.dataset.num_classes, full.rounds, full.fleet.clients) == (28_782, 200, 100)
    train = full.train
    assert (train.epochs, train.batch_size, train.lr, train.weight_decay) == (5, 128, 0.1, 0)
    small = "scale=small rounds=1 clients_per_round=2 dataset.max_train=80 dataset.max_test=8"
    server.run(InProcessGrid(8), compose(f"{row} {small} output={tmp_path} name=run"))
    (last,) = RunRecord(tmp_path / "run").metrics()
    assert len(last["levels"]) == 4
    assert last["local_perplexity"] > 1
