"""Runs that differ only in their seed are one group, named by its distinct settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from server_app.report.grouping import Spread, accuracies, grouped, over_runs, settings
from server_app.report.history import differences_table
from server_app.report.run_data import RunData
from server_app.report.scores import groups_table
from tests.support.recorded_runs import run_data


def made(name: str, strategy: str = "scalefl", seed: int = 0, **more: Any) -> RunData:
    config = {"strategy": {"name": strategy, **more.pop("settings", {})}, "seed": seed,
              "dataset": {"seed": seed}, "output": f"runs/{name}", **more}  # fmt: skip
    mean = 0.5 + seed / 10
    lines: list[dict[str, Any]] = [
        {"round": 1, "mean": mean, "worst": mean - 0.2, "levels": {"1": {"accuracy": mean - 0.2}}}
    ]
    return run_data(lines, config=config, name=name)


def names(*runs: RunData) -> dict[str, list[str]]:
    return {group.name: [run.name for run in group.runs] for group in grouped(runs)}


def test_runs_that_differ_in_their_seeds_are_one_group() -> None:
    runs = [made("a", seed=0), made("b", seed=1), made("c", "heterofl", seed=0)]
    assert names(*runs) == {"scalefl": ["a", "b"], "heterofl": ["c"]}


def test_a_run_alone_is_named_as_its_folder_is() -> None:
    assert names(made("a")) == {"a": ["a"]}
    assert names(made("a", seed=0), made("b", seed=1)) == {"a": ["a", "b"]}


def test_a_method_s_own_settings_are_not_in_its_group_s_name() -> None:
    runs = [made("a", settings={"beta": 1}), made("b", "heterofl", settings={"ratio": 2})]
    assert list(names(*runs)) == ["scalefl", "heterofl"]


def test_a_setting_in_which_runs_of_one_method_differ_is_in_the_name() -> None:
    runs = [made("a", settings={"beta": 1}), made("b", settings={"beta": 2}), made("c", "heterofl")]
    assert list(names(*runs)) == [
        *("scalefl strategy.beta=1", "scalefl strategy.beta=2"),
        "heterofl",
    ]


def test_labels_make_the_groups_where_they_are_given() -> None:
    runs = [made("a", rounds=3), made("b", rounds=5)]
    labels = {Path(name).resolve(): {"train.lr": lr, "seed": "0"} for name, lr in
              (("a", "0.1"), ("b", "0.2"))}  # fmt: skip
    resolved = [run_data(run.lines, name=str(run.directory.resolve())) for run in runs]  # type: ignore[arg-type]
    assert [group.name for group in grouped(resolved, labels)] == ["train.lr=0.1", "train.lr=0.2"]


def test_an_option_of_one_strategy_of_a_comparison_is_in_the_names_of_its_groups_alone() -> None:
    runs = [run_data(made(name).lines, name=str(Path(name).resolve())) for name in "abc"]  # type: ignore[arg-type]
    chosen = (
        {"strategy": "fedavg"},
        {"strategy": "nefl", "nefl.widths": "[1]"},
        {"strategy": "nefl", "nefl.widths": "[0.5,1]"},
    )
    labels = {run.directory: choices for run, choices in zip(runs, chosen, strict=True)}
    names = [group.name for group in grouped(runs, labels)]
    assert names == ["fedavg", "nefl widths=[1]", "nefl widths=[0.5,1]"]


def test_settings_are_texts_without_those_that_change_no_result() -> None:
    config = {"train": {"lr": 0.1, "nesterov": True}, "output": "runs", "fleet": {"shares": [1, 2]},
              "resume": None, "model": {"weights": None}}  # fmt: skip
    assert settings(config) == {
        "train.lr": "0.1", "train.nesterov": "true", "fleet.shares": "[1, 2]",
        "model.weights": "null",
    }  # fmt: skip


def test_the_differences_are_all_settings_that_are_not_the_same_but_for_seeds() -> None:
    runs = [made("a", seed=0, train={"lr": 0.1}), made("b", "heterofl", seed=1, train={"lr": 0.1})]
    runs[1].config["strategy"]["ratio"] = 0.5
    (table,) = differences_table(grouped(runs))
    assert table.columns == ["setting", "scalefl", "heterofl"]
    assert table.rows == [["strategy.name", "scalefl", "heterofl"], ["strategy.ratio", "-", "0.5"]]


def test_groups_that_do_not_differ_have_no_table_of_differences() -> None:
    assert differences_table(grouped([made("a", seed=0), made("b", seed=1)])) == []


def test_values_over_runs_are_of_the_rounds_that_all_have() -> None:
    found = over_runs([{1: 0.25, 2: 0.5, 3: 1.0}, {2: 0.75, 3: 0.5, 4: 1.0}])
    assert found == {2: Spread(0.625, 0.5, 0.75), 3: Spread(0.75, 0.5, 1.0)}
    assert over_runs([]) == {}


def test_an_accuracy_over_runs_is_a_mean_and_a_range() -> None:
    assert accuracies([0.5, None, 0.6]) == "55.0 (50.0 to 60.0) %"
    assert accuracies([None, 0.6]) == "60.0 %"
    assert accuracies([None]) == "-"


def test_the_table_of_groups_has_their_scores_and_levels() -> None:
    table = groups_table(grouped([made("a"), made("b", seed=1), made("c", "heterofl")]))
    assert table.columns == ["settings", "runs", "mean", "worst", "level 1"]
    assert table.rows == [
        ["scalefl", "2", "55.0 (50.0 to 60.0) %", *["35.0 (30.0 to 40.0) %"] * 2],
        ["heterofl", "1", "50.0 %", "30.0 %", "30.0 %"],
    ]
