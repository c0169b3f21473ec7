"""The report reads a run's directory in any state that the run left it in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from server_app.config.typed import ConfigError
from server_app.record.files import (
    CONFUSION_FILE,
    FLEET_FILE,
    METRICS_FILE,
    PROGRESS_FILE,
    SUMMARY_FILE,
)
from server_app.report.run_files import read_run
from tests.support.recorded_runs import fleet, recorded, round_of, run_data, write_run

BUDGETS = {"2": [{"budget": 0.5, "macs": 1e6, "accuracy": 0.5}]}


def ended(directory: Path, *events: str) -> Path:
    (directory / PROGRESS_FILE).write_text("".join(f"{event}\n" for event in events))
    return directory


def validated(directory: Path, *scores: float | None, **more: Any) -> Path:
    """Write a run of which each round's validation score is given; its mean is a tenth of round."""
    lines = [
        {"round": number, "mean": number / 10, "levels": {}}
        | ({} if score is None else {"validation": score})
        for number, score in enumerate(scores, 1)
    ]
    return write_run(directory, lines, fleet(), **more)


def test_a_finished_run_has_its_rounds_its_fleet_and_its_settings(tmp_path: Path) -> None:
    run = read_run(recorded(tmp_path / "run", rounds=3, clients=8, seed=7))
    assert (run.name, run.seed, run.rounds, run.finished) == ("run", "7", 3, True)
    assert run.reason is None
    assert run.fleet is not None
    assert len(run.fleet["clients"]) == 8
    assert run.config["strategy"] == {"name": "scalefl"}
    assert run.levels == ["1", "2", "3", "4"]
    assert run.exits == ["6", "7", "8", "9"]
    assert run.kinds == ["local", "global"]


def test_a_killed_run_has_not_finished_and_gives_no_reason(tmp_path: Path) -> None:
    directory = recorded(tmp_path / "run", rounds=3, finished=False)
    with (directory / METRICS_FILE).open("a") as file:
        file.write('{"round": 4, "lev')
    ended(directory, '{"event": "start"}', '{"event": "reply", "rou')
    run = read_run(directory)
    assert (run.rounds, run.finished, run.reason) == (3, False, None)


def test_a_failed_run_says_why(tmp_path: Path) -> None:
    directory = recorded(tmp_path / "run", finished=False)
    ended(directory, '{"event": "start"}', '{"event": "end", "reason": "no client answered"}', "{")
    assert read_run(directory).reason == "no client answered"


def test_the_reason_of_an_earlier_start_is_not_told_of_a_run_that_goes_on(tmp_path: Path) -> None:
    directory = recorded(tmp_path / "run", finished=False)
    ended(directory, '{"event": "end", "reason": "no client answered"}', '{"event": "start"}')
    assert read_run(directory).reason is None


def test_an_old_run_has_no_fleet_but_all_else(tmp_path: Path) -> None:
    lines = [round_of(number, fleet()) for number in (1, 2)]
    run = read_run(write_run(tmp_path / "run", lines, record=None))
    assert run.fleet is None
    assert run.level_facts == {}
    assert run.levels == ["1", "2", "3", "4"]


def test_a_run_without_a_round_is_read(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "run", [], None, finished=False))
    assert (run.lines, run.rounds, run.levels, run.kinds) == ([], 0, [], [])


def test_the_fleet_of_an_older_version_is_as_good_as_none(tmp_path: Path) -> None:
    directory = recorded(tmp_path / "run")
    (directory / FLEET_FILE).write_text('{"clients": {}}')
    assert read_run(directory).fleet is None


@pytest.mark.parametrize("name", [FLEET_FILE, SUMMARY_FILE, CONFUSION_FILE])
@pytest.mark.parametrize("text", ["{", "[]", "\0\0\0"])
def test_other_damaged_records_are_refused_with_the_name_of_their_file(
    tmp_path: Path, name: str, text: str
) -> None:
    directory = recorded(tmp_path / "run", rounds=2)
    (directory / name).write_text(text)
    with pytest.raises(ConfigError, match=f"{directory / name} cannot be read: "):
        read_run(directory)


@pytest.mark.parametrize("line", ["{\n", "3\n", '{"levels": {}}\n', "\0\0\0\n"])
def test_damaged_rounds_are_refused_with_the_name_of_their_file(tmp_path: Path, line: str) -> None:
    directory = recorded(tmp_path / "run")
    (directory / METRICS_FILE).write_text(line)
    with pytest.raises(ConfigError, match=r"metrics\.jsonl cannot be read: "):
        read_run(directory)


@pytest.mark.parametrize("config", [b"a: [", b"\xff\xfe\xff"])
def test_a_damaged_config_is_refused_with_the_name_of_its_file(
    tmp_path: Path, config: bytes
) -> None:
    directory = recorded(tmp_path / "run")
    (directory / "config.yaml").write_bytes(config)
    with pytest.raises(ConfigError, match=r"config\.yaml cannot be read: "):
        read_run(directory)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent is no folder: expected a run's directory"):
        read_run(tmp_path / "absent")
    with pytest.raises(ConfigError, match=r"holds no run: expected a run's directory"):
        read_run(tmp_path)


def test_budgets_are_those_of_the_summary(tmp_path: Path) -> None:
    directory = recorded(tmp_path / "run")
    (directory / SUMMARY_FILE).write_text(json.dumps({"budgets": BUDGETS}))
    assert read_run(directory).budgets == BUDGETS


def test_the_best_round_has_the_highest_validation_score_and_is_the_first_of_equals(
    tmp_path: Path,
) -> None:
    run = read_run(validated(tmp_path / "run", 0.2, 0.6, None, 0.6, 0.5))
    assert run.best_round == 2
    assert run.best_mean == 0.2
    assert run.summary["mean"] == 0.5  # of the last round, as long as nobody asks for the best


def test_the_start_may_be_the_best_round() -> None:
    run = run_data([{"round": 0, "mean": 0.4, "validation": 0.5},
                    {"round": 1, "mean": 0.3, "validation": 0.1}])  # fmt: skip
    assert (run.best_round, run.best_mean) == (0, 0.4)


def test_at_its_best_a_run_has_the_scores_of_its_best_round(tmp_path: Path) -> None:
    directory = validated(tmp_path / "run", 0.2, 0.6, None, 0.6, 0.5)
    (directory / SUMMARY_FILE).write_text(json.dumps({"budgets": BUDGETS}))
    run = read_run(directory, at_best=True)
    assert run.summary["mean"] == 0.2
    assert run.summary["validation"] == 0.6
    assert run.rounds == 5  # it has trained on
    assert run.budgets == {}  # measured after the last round


def test_at_its_best_clients_scores_are_of_no_later_round() -> None:
    lines: list[dict[str, Any]] = [
        {"round": 1, "validation": 0.1, "local": 0.3, "scores": {"local": {"0": 0.3}}},
        {"round": 2, "validation": 0.9},
        {"round": 3, "validation": 0.5, "local": 0.7, "scores": {"local": {"0": 0.7}}},
    ]
    assert run_data(lines).scores("local") == (3, {"0": 0.7})
    assert run_data(lines, at_best=True).scores("local") == (1, {"0": 0.3})


def test_a_best_round_takes_a_validation_score(tmp_path: Path) -> None:
    directory = validated(tmp_path / "run", None, None)
    with pytest.raises(ConfigError, match=r"has no best round: no score .* is recorded"):
        read_run(directory, at_best=True)


def test_bytes_seconds_and_macs_are_added_up_round_by_round() -> None:
    lines: list[dict[str, Any]] = [
        {"round": 0, "mean": 0.1},
        {"round": 1, "bytes": {"down": 10, "up": 5},
         "slices": {"1": {"device_seconds": 2.0, "macs": 100},
                    "2": {"device_seconds": 3.0, "macs": 200}}},
        {"round": 2, "bytes": {"down": 0, "up": 0}, "slices": {}},  # nobody was there
        {"round": 3, "bytes": {"down": 20, "up": 1},
         "slices": {"2": {"device_seconds": 4.0, "macs": 50}}},
    ]  # fmt: skip
    run = run_data(lines)
    assert run.spent("rounds") == {0: 0, 1: 1, 2: 2, 3: 3}
    assert run.spent("bytes") == {0: 0, 1: 15, 2: 15, 3: 36}
    assert run.spent("seconds") == {0: 0, 1: 5, 2: 5, 3: 9}
    assert run.spent("macs") == {0: 0, 1: 300, 2: 300, 3: 350}


def test_what_an_old_round_did_not_record_is_not_guessed() -> None:
    run = run_data([{"round": 1, "bytes": {"down": 1, "up": 1}, "slices": {"1": {"replied": 1}}},
                    {"round": 2, "bytes": {"down": 1, "up": 1}}])  # fmt: skip
    assert run.spent("bytes") == {1: 2, 2: 4}
    assert run.spent("seconds") == {}
    assert run.spent("macs") == {}
