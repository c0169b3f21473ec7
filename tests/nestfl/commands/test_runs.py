"""`nestfl runs`: a table of all runs below a folder, among any other files."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from nestfl.commands import app
from nestfl.commands.run_list import RunList
from nestfl.commands.runs import show
from server_app.record.files import (
    COMPARISON_FILE,
    LAUNCHER_LOCK,
    METRICS_FILE,
    PROGRESS_FILE,
    RECORD_LOCK,
    SUMMARY_FILE,
    Lock,
    in_use,
)
from tests.support.recorded_runs import fleet, recorded, round_of, write_run

REPOSITORY = Path(__file__).resolve().parents[3]
NAME = "20260131-120000-scalefl-resnet20-digits"


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)


def told(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["runs", *arguments])


def entries(*arguments: str) -> dict[str, dict[str, Any]]:
    """Return each run's JSON entry, by its directory."""
    result = told(*arguments, "--json")
    assert result.exit_code == 0
    return {each["run"]: each for each in json.loads(result.stdout)}


def unfinished(directory: Path, *events: dict[str, Any]) -> Path:
    """Write a run of two rounds of which one is recorded; `events` are the last that it told."""
    record = fleet(4)
    run = write_run(directory, [round_of(n, record) for n in (1, 2)], record, finished=False)
    lines = (run / METRICS_FILE).read_text().splitlines(keepends=True)
    (run / METRICS_FILE).write_text(lines[0] + lines[1][:40])  # a kill cut it
    (run / PROGRESS_FILE).write_text("".join(json.dumps(each) + "\n" for each in events))
    return run


def on_a_screen(folder: str, width: int) -> list[str]:
    screen = io.StringIO()
    show(RunList.below(Path(folder)), Console(file=screen, width=width, force_terminal=True,
                                              color_system=None))  # fmt: skip
    return [line.rstrip() for line in screen.getvalue().splitlines() if line.strip()]


def test_a_run_is_told_with_what_it_was_how_far_it_came_and_how_good_it_is() -> None:
    recorded(Path("runs", "one"), rounds=2, strategy="heterofl", seed=3)
    # Round 2 reaches 0.45; the worst of four levels is 0.06 below that, the mean 0.03.
    assert entries()["runs/one"] == {
        "run": "runs/one", "method": "heterofl", "model": "resnet20", "data": "digits", "seed": 3,
        "rounds": 2, "of": 2, "worst": pytest.approx(0.39), "mean": pytest.approx(0.42),
        "started": "2026-01-31T12:00:00+00:00", "ended": "finished", "note": "",
    }  # fmt: skip


def test_csv_has_the_same_fields_and_numbers() -> None:
    recorded(Path("runs", "one"))
    (row,) = csv.DictReader(io.StringIO(told("--csv").stdout))
    found = entries()["runs/one"]
    assert row == {key: str(value) for key, value in found.items()}


def test_runs_are_sorted_by_when_they_started_the_newest_last() -> None:
    for name, day in (("a", "2026-03-01"), ("b", "2026-01-01"), ("c", "2026-02-01")):
        record = {**fleet(4), "started": f"{day}T00:00:00+00:00"}
        write_run(Path("runs", name), [round_of(1, fleet(4))], record)  # type: ignore[arg-type]
    assert list(entries()) == ["runs/b", "runs/c", "runs/a"]


def test_a_run_that_did_not_record_when_goes_by_the_age_of_its_files() -> None:
    run = write_run(Path("runs", "old"), [round_of(1, fleet(4))], None)
    os.utime(run / "config.yaml", (0, 0))
    assert entries()["runs/old"]["started"] == "1970-01-01T00:00:00+00:00"


def test_how_a_run_ended_is_told() -> None:
    recorded(Path("runs", "finished"))
    start = {"event": "start", "rounds": 2}
    unfinished(Path("runs", "failed"), start, {"event": "end", "reason": "OSError: \x1b[2Jno room"})
    unfinished(Path("runs", "stopped"), start, {"event": "end", "reason": "Stopped: SIGINT"})
    unfinished(Path("runs", "killed"), start)
    running = unfinished(Path("runs", "running"), start)
    held = Lock(running / RECORD_LOCK)
    found = entries()
    held.close()
    assert {run.removeprefix("runs/"): each["ended"] for run, each in found.items()} == {
        "finished": "finished", "failed": "failed", "stopped": "stopped", "killed": "stopped",
        "running": "running",
    }  # fmt: skip
    assert found["runs/failed"]["note"] == "OSError: \x1b[2Jno room"
    assert told().stderr == "nestfl runs: failed failed: OSError: no room\n"
    assert (found["runs/killed"]["rounds"], found["runs/killed"]["of"]) == (1, 2)
    assert entries()["runs/running"]["ended"] == "stopped"


def test_a_launcher_that_waits_for_flower_runs_and_looking_leaves_its_lock_alone() -> None:
    run = Path("runs", "new")
    run.mkdir(parents=True)
    held = Lock(run / LAUNCHER_LOCK)
    assert in_use(run / LAUNCHER_LOCK)
    assert entries()["runs/new"]["ended"] == "running"
    assert told().stderr == ""  # it has no config yet
    held.close()
    assert entries()["runs/new"]["note"] == "there is no config.yaml"
    assert not in_use(run / LAUNCHER_LOCK)
    assert not in_use(run / "absent")


def test_scores_are_those_of_the_newest_round_that_was_tested() -> None:
    record = fleet(4)
    lines = [round_of(1, record), round_of(2, record), {"round": 3, "mean": None}, {"round": 4}]
    write_run(Path("runs", "one"), lines, record, finished=False)
    found = entries()["runs/one"]
    assert (found["rounds"], found["mean"]) == (4, pytest.approx(0.42))


def test_runs_of_comparisons_are_listed_and_their_logs_are_no_folders_without_runs() -> None:
    folder = Path("runs", "compare-seed-1f2e3d4c")
    for seed in (0, 1):
        recorded(folder / f"seed-{seed}", seed=seed)
    (folder / "logs").mkdir()
    for name in (COMPARISON_FILE, LAUNCHER_LOCK):
        (folder / name).write_text("{}")
    assert list(entries()) == [f"{folder}/seed-0", f"{folder}/seed-1"]
    for arguments in ((), (str(folder),)):
        assert told(*arguments).stderr == ""
    assert told(str(folder / "seed-1")).stdout.splitlines()[1].startswith("seed-1 ")


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("config.yaml", "a: [", "config.yaml cannot be read: while parsing a flow node"),
        ("config.yaml", "\x00\x01", "config.yaml cannot be read: "),
        ("config.yaml", "just a text", "config.yaml cannot be read: the document is 'just a text'"),
        ("config.yaml", None, "there is no config.yaml"),
        (SUMMARY_FILE, '{"rounds": 2,', "summary.json cannot be read: "),
        (SUMMARY_FILE, "[" * 100_000, "summary.json cannot be read: "),
        ("fleet.json", "{", "fleet.json cannot be read: "),
    ],
)
def test_a_damaged_run_is_one_line_that_says_what_is_wrong(
    file: str, text: str | None, said: str
) -> None:
    recorded(Path("runs", "fine"))
    run = recorded(Path("runs", "broken"))
    (run / file).unlink()
    if text is not None:
        (run / file).write_text(text)
    result = told()
    assert result.exit_code == 0
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"nestfl runs: broken is damaged: {said}")
    found = entries()
    assert (found["runs/fine"]["ended"], found["runs/broken"]["ended"]) == ("finished", "damaged")
    assert found["runs/broken"]["rounds"] == 5  # of metrics.jsonl, where there is no summary


@pytest.mark.parametrize("last", ["not json", "[1]", '{"no": "round"}', '{"round": 1, "mean": '])
def test_a_last_line_that_is_no_round_s_is_damage(last: str) -> None:
    run = recorded(Path("runs", "broken"), finished=False)
    with (run / METRICS_FILE).open("a") as lines:
        lines.write(f"{last}\n")
    assert entries()["runs/broken"]["ended"] == "damaged"
    assert "metrics.jsonl cannot be read" in told().stderr


def test_odd_values_are_left_open() -> None:
    run = recorded(Path("runs", "odd"))
    (run / "config.yaml").write_text("strategy: scalefl\nmodel: {}\nrounds: many\nseed: true\n")
    (run / SUMMARY_FILE).write_text('{"rounds": "5", "mean": NaN, "worst": [1]}')
    found = entries()["runs/odd"]
    assert {found[key] for key in ("method", "model", "data")} == {"?"}
    assert {found[key] for key in ("seed", "of", "mean", "worst")} == {None}


def test_foreign_folders_are_told_in_one_line_and_files_are_passed_over() -> None:
    recorded(Path("runs", "one"))
    for number in range(10):
        Path("runs", f"photos{number}").mkdir()
    Path("runs", "photos0", "config.yaml").write_text("a: 1")  # any program may have one
    Path("runs", ".hidden").mkdir()
    Path("runs", "mlflow.db").touch()
    result = told()
    named = ", ".join(f"photos{number}" for number in range(8))
    assert result.stderr == f"nestfl runs: no run in {named} and 2 more\n"
    assert list(entries()) == ["runs/one"]


def test_links_are_followed_once() -> None:
    run = recorded(Path("elsewhere", "one"))
    Path("runs").mkdir()
    Path("runs", "loop").symlink_to(Path("runs").resolve())
    Path("runs", "there").symlink_to(run.resolve())
    Path("runs", "twice").symlink_to(run.resolve())
    Path("runs", "gone").symlink_to("nowhere")
    assert list(entries()) == ["runs/there"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_told() -> None:
    recorded(Path("runs", "one"))
    closed = Path("runs", "closed")
    closed.mkdir(mode=0)
    assert told().stderr == "nestfl runs: runs/closed cannot be read: Permission denied\n"


def test_without_runs_there_is_a_sentence_and_without_a_folder_an_error() -> None:
    Path("runs").mkdir()
    assert told().stdout == "no runs below runs\n"
    assert told("--json").stdout == "[]\n"
    assert told("--csv").stdout.startswith("run,method,model,")
    gone = told("absent")
    assert gone.exit_code == 2
    assert gone.stderr.startswith("nestfl runs: absent is no folder")
    both = told("--json", "--csv")
    assert (both.exit_code, both.stderr.count("expected one of them")) == (2, 1)


def test_80_columns_hold_whole_names_with_what_they_are_below_them() -> None:
    recorded(Path("runs", NAME), rounds=20)
    recorded(Path("runs", "compare-seed-strategy-1f2e3d4c", "strategy-heterofl_seed-0"))
    lines = on_a_screen("runs", 80)
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["run", "rounds", "worst", "mean", "when", "ended"]
    wide = lines[0].index(" rounds")
    named = "".join(line[:wide].strip() for line in lines[2:])
    assert NAME in named
    assert "compare-seed-strategy-1f2e3d4c/strategy-heterofl_seed-0" in named
    assert sum(line.startswith("  scalefl resnet20 digits") for line in lines) == 2
    assert any("20/20" in line and line.endswith("finished") for line in lines)


@pytest.mark.parametrize("width", [30, 60, 80, 100, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    recorded(Path("runs", NAME))
    recorded(Path("runs", "[red]a name that is no markup[/]"))
    assert max(map(len, on_a_screen("runs", width))) <= width


def test_a_wide_terminal_has_a_column_for_each_thing_and_a_line_for_each_run() -> None:
    recorded(Path("runs", NAME))
    recorded(Path("runs", "[red]short[/]"))
    head, _, *rows = on_a_screen("runs", 120)
    assert head.split() == ["run", "method", "model", "data", "rounds", "worst", "mean", "when",
                            "ended"]  # fmt: skip
    assert [row.split()[:5] for row in rows] == [
        [name, "scalefl", "resnet20", "digits", "5/5"] for name in (NAME, "[red]short[/]")
    ]


def test_a_pipe_has_a_line_for_each_run_unless_columns_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "compare-" + "x" * 100
    recorded(Path("runs", name))
    assert len(told().stdout.splitlines()) == 2
    assert name in told().stdout
    monkeypatch.setenv("COLUMNS", "80")
    lines = told().stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) > 3


def test_it_is_fast_because_torch_is_not_loaded() -> None:
    recorded(Path("runs", "one"))
    code = (
        "import sys; from nestfl.commands import app\n"
        "try: app(['runs'])\n"
        "finally: print([m for m in ('torch', 'flwr', 'hydra', 'ray') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          env={**os.environ, "PYTHONPATH": str(REPOSITORY)})  # fmt: skip
    assert done.stdout.splitlines()[-1] == "[]"
