"""Accuracy of a run's levels under budgets, as in its report."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from data.clients import global_test
from data.inputs import Inputs
from nestfl.local_engine import LocalGrid
from server_app import app as server
from server_app import predictor as predicting
from server_app.config.composing import compose
from server_app.predictor import REPORT_BATCH, Predictor, budgets_of, compare, front
from server_app.trained_level import load_level

SMALL = (
    "fleet=small model=resnet20 strategy=scalefl rounds=2 train.epochs=2 dataset.max_train=400 "
    "dataset.max_test=200 evaluate.every=0"
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    server.run(LocalGrid(4), compose(f"{SMALL} output={folder} name=run"))
    return folder / "run"


def test_a_finished_run_has_budgets_of_all_levels_with_early_exits(run: Path) -> None:
    found = json.loads((run / "summary.json").read_text())["budgets"]
    assert list(found) == ["2", "3", "4"]  # level 1 has one exit
    assert found == budgets_of(run)
    for number, points in found.items():
        prices = Predictor(load_level(run, int(number)), REPORT_BATCH).macs
        assert all(prices.exits[0] <= point["macs"] <= prices.exits[-1] for point in points)
        assert all(0 <= point["accuracy"] <= 1 for point in points)
        assert [point["budget"] for point in points] == sorted(point["budget"] for point in points)
        assert all(point["budget"] < 1 for point in points)


def test_a_budget_comes_to_what_answering_with_it_does(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predicting, "LEAST_SECONDS", 0.0)
    predictor = Predictor(load_level(run), REPORT_BATCH)
    test = global_test(predictor.level.dataset)
    *outcomes, to_the_end = compare(predictor, Inputs(test, ()))
    assert to_the_end.thresholds is None
    for point, outcome in zip(front(predictor, test), outcomes, strict=True):
        assert point.budget == outcome.budget
        assert point.macs == pytest.approx(outcome.result.macs)
        assert point.accuracy == pytest.approx(outcome.result.accuracy)


def test_a_server_without_validation_data_says_so_and_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)  # to pytest
    with caplog.at_level(logging.INFO, "flwr"):
        config = compose(f"{SMALL} output={tmp_path} name=run dataset.validation=0 rounds=1")
        server.run(LocalGrid(4), config)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["budgets"] == {}
    assert "the report is without budgets: no validation data to fit thresholds on" in caplog.text
    assert (tmp_path / "run" / "report.html").exists()


def test_a_run_without_a_report_counts_no_budgets(tmp_path: Path) -> None:
    server.run(LocalGrid(4), compose(f"{SMALL} output={tmp_path} name=run report=false rounds=1"))
    assert "budgets" not in json.loads((tmp_path / "run" / "summary.json").read_text())
    assert not (tmp_path / "run" / "report.html").exists()
