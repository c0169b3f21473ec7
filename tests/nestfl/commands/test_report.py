"""`nestfl report`: the place of its page, and refused requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from nestfl.commands import app
from server_app.record.files import COMPARISON_FILE
from tests.support.recorded_runs import fleet, recorded, round_of, write_run


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def report(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["report", *arguments])


def refusal(*arguments: str) -> str:
    done = report(*arguments)
    assert done.exit_code == 2, done.output
    assert done.stdout == ""
    return done.stderr


def test_the_report_of_a_run_is_in_its_directory() -> None:
    recorded(Path("runs/a"))
    done = report("runs/a")
    assert (done.exit_code, done.stdout) == (0, "report: runs/a/report.html\n")
    assert "<!doctype html>" in Path("runs/a/report.html").read_text()


def test_the_report_of_several_runs_is_here() -> None:
    recorded(Path("runs/a"))
    recorded(Path("runs/b"), strategy="heterofl")
    done = report("runs/a", "runs/b")
    assert (done.exit_code, done.stdout) == (0, "report: report.html\n")
    text = Path("report.html").read_text()
    assert "<td>scalefl</td>" in text
    assert "<td>heterofl</td>" in text


def test_output_chooses_another_file() -> None:
    recorded(Path("runs/a"))
    assert report("runs/a", "--output", "page.html").stdout == "report: page.html\n"
    assert Path("page.html").is_file()
    assert not Path("runs/a/report.html").exists()


def test_a_report_is_made_anew_in_place_of_an_old_one() -> None:
    recorded(Path("runs/a"))
    Path("runs/a/report.html").write_text("old")
    assert report("runs/a").exit_code == 0
    assert Path("runs/a/report.html").read_text() != "old"


def test_a_run_that_is_still_going_has_a_report() -> None:
    recorded(Path("runs/a"), rounds=2, finished=False)
    assert report("runs/a").exit_code == 0
    assert "a has not finished: 2 of 2 rounds" in Path("runs/a/report.html").read_text()


def test_the_best_rounds_are_told_where_asked_for() -> None:
    record = fleet()
    lines = [round_of(n, record) | {"validation": score} for n, score in ((1, 0.9), (2, 0.8))]
    write_run(Path("runs/a"), lines, record)
    assert report("runs/a", "--best").exit_code == 0
    assert "best round by validation data, not its last" in Path("runs/a/report.html").read_text()


def test_best_takes_a_validation_score() -> None:
    recorded(Path("runs/a"))
    assert "runs/a has no best round" in refusal("runs/a", "--best")
    assert not Path("runs/a/report.html").exists()


def test_what_is_no_run_is_refused() -> None:
    assert refusal("absent") == (
        "nestfl report: absent is no folder: expected a run's directory, with a config.yaml\n"
    )
    Path("empty").mkdir()
    assert refusal("empty") == (
        "nestfl report: empty holds no run: expected a run's directory, with a config.yaml\n"
    )


def test_a_run_without_a_round_is_refused() -> None:
    write_run(Path("runs/a"), [], None, finished=False)
    assert "nothing to report yet: no round is recorded in" in refusal("runs/a")


def test_an_output_that_is_a_folder_is_refused() -> None:
    recorded(Path("runs/a"))
    assert refusal("runs/a", "--output", "runs") == (
        "nestfl report: --output runs is a folder: expected a file, such as runs/report.html\n"
    )


def test_an_output_in_no_folder_is_refused() -> None:
    recorded(Path("runs/a"))
    assert refusal("runs/a", "--output", "pages/a.html") == (
        "nestfl report: pages/a.html cannot be written: pages is no folder\n"
    )


def test_a_run_that_is_given_twice_is_refused() -> None:
    recorded(Path("runs/a"))
    assert refusal("runs/a", "runs/a/") == "nestfl report: runs/a: the same run more than once\n"


def test_a_comparison_without_a_finished_run_is_refused() -> None:
    Path("compared").mkdir()
    record: dict[str, Any] = {"command": [], "baseline": {}, "target": None, "trials": []}
    Path("compared", COMPARISON_FILE).write_text(json.dumps(record))
    assert "no run of the comparison compared has finished" in refusal("compared")


def test_a_damaged_comparison_is_refused() -> None:
    Path("compared").mkdir()
    Path("compared", COMPARISON_FILE).write_text("{")
    assert "comparison.json is no record of a comparison" in refusal("compared")


def test_at_least_one_run_is_asked_for() -> None:
    assert report().exit_code == 2
