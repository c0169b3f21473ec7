"""Origins of runs, their ends, and warnings where they cannot be compared."""

from __future__ import annotations

from pathlib import Path

from server_app.record.files import REPORT_FILE
from server_app.report.blocks import Block, Code, Text
from server_app.report.grouping import grouped
from server_app.report.history import origin_blocks, runs_table, subtitle, warnings
from server_app.report.run_files import read_run
from tests.support.recorded_runs import fleet, recorded, round_of, run_data, write_run


def headings(blocks: list[Block]) -> list[str]:
    return [each.text for each in blocks if isinstance(each, Text) and each.tag == "h3"]


def commands(blocks: list[Block]) -> list[str]:
    return [each.text for each in blocks if isinstance(each, Code)]


def test_the_runs_table_has_scores_code_and_folders_from_the_report_s_own(tmp_path: Path) -> None:
    first = recorded(tmp_path / "runs" / "a", rounds=2, seed=0)
    second = recorded(tmp_path / "runs" / "b", rounds=4, strategy="heterofl", seed=1)
    (second / REPORT_FILE).write_text("")
    groups = grouped([read_run(first), read_run(second)])
    table = runs_table(groups, tmp_path / "report.html")
    # Rounds 2 and 4 reach 0.45 and 0.6; levels are 0.06, 0.04, 0.02 and 0 below that.
    assert table.rows == [
        [groups[0].name, "0", "2", "42.0 %", "39.0 %", "0123456789abcdef", "runs/a"],
        [groups[1].name, "1", "4", "57.0 %", "54.0 %", "0123456789abcdef",
         "runs/b (has a report of its own)"],
    ]  # fmt: skip


def test_at_their_best_the_runs_table_names_the_best_rounds(tmp_path: Path) -> None:
    lines = [{"round": 1, "mean": 0.5, "worst": 0.4, "validation": 0.9, "levels": {}},
             {"round": 2, "mean": 0.6, "worst": 0.5, "validation": 0.8, "levels": {}}]  # fmt: skip
    groups = grouped([run_data(lines, at_best=True)])
    table = runs_table(groups, tmp_path / "report.html")
    assert dict(zip(table.columns, table.rows[0], strict=True)) == {
        "settings": "run", "seed": "", "rounds": "2", "best round": "1", "mean": "50.0 %",
        "worst": "40.0 %", "code": "-", "folder": table.rows[0][-1],
    }  # fmt: skip


def test_the_subtitle_says_what_the_runs_are(tmp_path: Path) -> None:
    one = read_run(recorded(tmp_path / "a", rounds=1, clients=1))
    assert subtitle(grouped([one])) == (
        "strategy scalefl · model resnet20 · dataset digits · 1 round · 1 client · seed 0"
    )
    other = read_run(recorded(tmp_path / "b", rounds=4, clients=8, strategy="heterofl", seed=1))
    assert subtitle(grouped([one, other])) == (
        "strategy heterofl / scalefl · model resnet20 · dataset digits · 1 / 4 rounds · "
        "1 / 8 clients · seeds 0, 1"
    )


def test_the_subtitle_says_whose_scores_they_are() -> None:
    run = run_data([{"round": 1, "validation": 0.5}], at_best=True, config={"model": None})
    assert "model ?" in subtitle(grouped([run]))
    assert subtitle(grouped([run])).endswith("best round by validation data, not its last")


def test_a_run_that_has_finished_with_the_same_code_is_no_warning(tmp_path: Path) -> None:
    assert warnings([read_run(recorded(tmp_path / name)) for name in "ab"]) == []


def test_runs_that_have_not_finished_are_named() -> None:
    lines, config = [{"round": 3, "validation": 0.1}], {"rounds": 9}
    going = run_data(lines, config=config, name="going", finished=False)
    failed = run_data(lines, config=config, name="failed", finished=False, reason="no client")
    assert warnings([going, failed]) == [
        "going has not finished: 3 of 9 rounds are recorded. It is still going, or was stopped.",
        "failed has not finished: 3 of 9 rounds are recorded. It failed: no client.",
    ]


def test_runs_of_different_code_are_no_fair_comparison() -> None:
    other = fleet()
    other["code"] = "beef"
    runs = [run_data([{"round": 1}], record) for record in (fleet(), other, None)]
    assert warnings(runs) == [
        "The runs were made by different versions of the code: 0123456789abcdef, beef."
    ]


def test_every_start_has_its_command_code_and_versions(tmp_path: Path) -> None:
    record = fleet()
    record["resumed"] = [
        {"started": "2026-02-01T12:00:00+00:00", "command": "nestfl run --resume runs/a",
         "code": "beef", "versions": {"python": "3.12.1"}, "after": 2}
    ]  # fmt: skip
    run = read_run(write_run(tmp_path / "a", [round_of(1, record)], record))
    blocks = origin_blocks(grouped([run]), tmp_path / "report.html", 1)
    assert headings(blocks) == ["The command that repeats it", "Resumed after round 2"]
    assert commands(blocks) == ["nestfl run strategy=scalefl", "nestfl run --resume runs/a"]
    first, again = (each.text for each in blocks if isinstance(each, Text) and each.style)
    assert first == (
        "Started 2026-01-31T12:00:00+00:00, code 0123456789abcdef, "
        "python 3.11.7, torch 2.14.0, flwr 1.41.0, nestfl 0.1.0."
    )
    assert "code beef" in again


def test_several_groups_have_the_command_of_their_first_run_each(tmp_path: Path) -> None:
    runs = [read_run(recorded(tmp_path / f"{strategy}{seed}", strategy=strategy, seed=seed))
            for strategy in ("scalefl", "heterofl") for seed in (0, 1)]  # fmt: skip
    blocks = origin_blocks(grouped(runs), tmp_path / "report.html", 4)
    assert headings(blocks) == ["scalefl", "heterofl"]
    assert commands(blocks) == ["nestfl run strategy=scalefl"] * 2
