"""Strategies under serving settings: Table 1 of CIS from a sweep, by hand."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from nestfl.comparing.comparison import Comparison
from nestfl.comparing.outcome import Outcome
from nestfl.comparing.results import Result, Target, grouped
from nestfl.comparing.serving_table import serving_table
from nestfl.comparing.trials import Trial, expand
from server_app.config.composing import compose
from server_app.record.summary import summarise
from tests.support.recorded_runs import PAPERS_SETTINGS, fleet, round_of, served, write_run

WEIGHTS = "strategy.weights=equal,flops,serving,balanced"
SWEEP = (WEIGHTS, "fleet.serving=80-15-5,33-33-33,5-15-80", "seed=0,1,2")
FIRST = {"equal": 0.5, "flops": 0.3, "serving": 0.55, "balanced": 0.54}
STEP = {"equal": 0.06, "flops": 0.09, "serving": 0.05, "balanced": 0.06}
AWARE = ("serving", "balanced")


def line_of(trial: Trial, own: str) -> dict[str, Any]:
    """Return the last round of a run, whose accuracies rise by a step, and by 0.01 for a seed.

    Inference-aware runs that are trained for a later setting have 0.05 less under all of them.
    """
    weights = trial.choices.get("strategy.weights", "equal")
    lost = 0.05 * (own != "80-15-5") * (weights in AWARE)
    first = FIRST[weights] - lost + 0.01 * int(trial.seed or 0)
    return served({"round": 1, "mean": 0.5, "levels": {}}, first, STEP[weights], own)


def results(*overrides: str, own: str = "80-15-5") -> list[Result]:
    found = []
    for trial in expand(overrides):
        serving = trial.choices.get("fleet.serving", own)
        lines: list[Any] = [line_of(trial, serving)]
        found.append(Result(trial, Path("run"), summarise(lines), lines, serving=serving))
    return found


def test_a_sweep_over_settings_gives_the_paper_s_table() -> None:
    table = serving_table(grouped(results(*SWEEP)))
    assert table is not None
    assert table.columns == [
        "", "80-15-5 (own)", "60-30-10", "45-35-20", "33-33-33 (own)", "20-35-45", "10-30-60",
        "5-15-80 (own)",
    ]  # fmt: skip
    # The means over seeds are 0.01 above seed 0, and their deviation is 0.01. Strategies that do
    # not look at serving rates are one run, tested under all; the others have a run for a column.
    assert [[cell.removesuffix(" ± 1.0") for cell in row] for row in table.rows] == [
        ["strategy.weights=equal", "51.0", "57.0", "63.0", "* 69.0", "75.0", "81.0", "* 87.0"],
        ["strategy.weights=flops", "31.0", "40.0", "49.0", "58.0", "67.0", "76.0", "85.0"],
        ["strategy.weights=serving", "* 56.0", "-", "-", "66.0", "-", "-", "81.0"],
        ["strategy.weights=balanced", "55.0", "-", "-", "68.0", "-", "-", "86.0"],
    ]
    assert "± 1.0" in table.rows[2][1]


def test_with_one_setting_trained_for_all_cells_are_of_the_runs_there_are() -> None:
    table = serving_table(grouped(results(WEIGHTS, own="33-33-33")))
    assert table is not None
    assert [column for column in table.columns if "own" in column] == ["33-33-33 (own)"]
    serving = next(row for row in table.rows if "=serving" in row[0])
    assert serving[1:] == ["* 50.0", "55.0", "60.0", "65.0", "70.0", "75.0", "80.0"]
    equal = ["* 50.0", "* 56.0", "* 62.0", "* 68.0", "* 74.0", "* 80.0", "* 86.0"]
    assert table.rows[0][1:] == equal  # both that have 50.0 are the best


def test_a_sweep_over_settings_alone_has_one_row_and_nothing_is_the_best() -> None:
    table = serving_table(grouped(results("fleet.serving=80-15-5,5-15-80", "seed=0,1")))
    assert table is not None
    assert [row[0] for row in table.rows] == ["all runs"]
    assert table.rows[0][1] == "50.5 ± 0.7"
    assert not [cell for cell in table.rows[0] if "*" in cell]


def test_the_system_s_accuracy_is_one_of_the_scores_and_paired_under_the_same_setting() -> None:
    outcome = Outcome.of_results(results(*SWEEP), {"strategy.weights": "equal"}, Target())
    accuracy, settings, *_, differences = outcome.tables()
    assert accuracy.columns == ["", "seeds", "mean", "cis", "rise"]
    assert accuracy.rows[0][3] == "51.0 ± 1.0"
    assert accuracy.notes[0].startswith("Cis: the whole collaborative system")
    assert settings.heading == "Accuracy of the system by serving setting, in percent"
    told = {row[0]: row[1:] for row in differences.rows}
    ours = "strategy.weights=serving fleet.serving"
    assert told[f"{ours}=80-15-5: cis"] == ["+5.0", "+5.0 to +5.0", "3", "better"]
    assert told[f"{ours}=5-15-80: cis"] == ["-6.0", "-6.0 to -6.0", "3", "worse"]


def test_the_files_of_a_comparison_have_the_cells() -> None:
    texts = Outcome.of_results(results(*SWEEP), {}, Target()).texts()
    found = json.loads(texts["table.json"])["settings"]
    assert [row["choices"]["strategy.weights"] for row in found] == [*FIRST]
    assert list(found[0]["settings"]) == PAPERS_SETTINGS
    assert list(found[2]["settings"]) == ["80-15-5", "33-33-33", "5-15-80"]
    cell = found[2]["settings"]["80-15-5"]
    assert cell["by_seed"] == pytest.approx({"0": 0.55, "1": 0.56, "2": 0.57})
    assert (cell["mean"], cell["deviation"]) == pytest.approx((0.56, 0.01))
    assert (cell["own"], cell["best"]) == (True, True)
    assert (found[0]["settings"]["60-30-10"]["own"], found[3]["settings"]["5-15-80"]["best"]) == (
        *(False, False),
    )
    rows = [row for row in csv.DictReader(texts["table.csv"].splitlines())
            if row["score"].startswith("setting ")]  # fmt: skip
    assert len(rows) == 7 + 7 + 3 + 3
    assert {row["fleet.serving"] for row in rows[:14]} == {""}  # whatever they were trained for
    assert [(row["fleet.serving"], row["score"], row["seeds"]) for row in rows[14:17]] == [
        (each, f"setting {each}", "3") for each in ("80-15-5", "33-33-33", "5-15-80")
    ]
    assert float(rows[14]["mean"]) == pytest.approx(0.56)
    assert "| * 56.0 ± 1.0 | - | - | 66.0 ± 1.0 |" in texts["table.md"]


def test_the_system_s_accuracy_may_be_what_has_to_reach_a_target() -> None:
    outcome = Outcome.of_results(results(*SWEEP), {}, Target(None, "cis"))
    assert outcome.target == Target(0.3, "cis")  # FLOPS-proportional weights, seed 0, 80-15-5
    assert str(outcome.target) == "30.0 % accuracy of the collaborative system"
    reached = [group["to_target"]["runs"] for group in
               json.loads(outcome.texts()["table.json"])["groups"]]  # fmt: skip
    assert reached == [3] * 12


def test_a_comparison_without_systems_says_nothing_of_them() -> None:
    summary = {"rounds": 1, "levels": {}, "mean": 0.5}
    plain = [Result(trial, Path("run"), summary, []) for trial in expand([WEIGHTS])]
    outcome = Outcome.of_results(plain, {}, Target())
    assert serving_table(outcome.groups) is None
    texts = outcome.texts()
    assert "settings" not in json.loads(texts["table.json"])
    assert "setting" not in texts["table.md"]
    assert "cis" not in texts["table.csv"]


def test_what_a_run_was_trained_for_is_read_from_its_config(tmp_path: Path) -> None:
    trials = expand(["fleet.serving=80-15-5,5.0-15-80", "fleet=cis_7"])
    configs = [compose(trial.overrides) for trial in trials]
    for trial in trials:
        line = served(round_of(1, fleet()), 0.5, 0.05)
        write_run(tmp_path / trial.name, [line], fleet())
    found = Comparison(tmp_path, trials, configs).results()
    assert [result.serving for result in found] == ["80-15-5", "5-15-80"]


def test_a_comparison_s_report_has_the_table_and_a_line_for_each_strategy(tmp_path: Path) -> None:
    found = []
    for trial in expand(SWEEP):
        own = trial.choices["fleet.serving"]
        line = {**round_of(1, fleet(7, 3)), **line_of(trial, own)}
        config = f"fleet:\n  serving: {own}\n"
        directory = write_run(tmp_path / trial.name, [line], fleet(7, 3), config,
                              seed=int(trial.seed or 0))  # fmt: skip
        found.append(Result.read(trial, directory, 1, own))
    outcome = Outcome.of_results([each for each in found if each], {}, Target())
    outcome.write_report(tmp_path / "report.html", figures=tmp_path / "figures")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.count("<h3>Accuracy of the system by serving setting, in percent</h3>") == 1
    assert "strategy.weights=serving, 80-15-5: 56.0 ± 1.0 %, trained for it" in page
    assert "strategy.weights=equal, 60-30-10: 57.0 ± 1.0 %<" in page
    figure = tmp_path / "figures" / "accuracy-of-the-system-by-serving-setting-settings.svg"
    assert figure.read_text(encoding="utf-8").count("<circle") == 7 + 7 + 3 + 3
