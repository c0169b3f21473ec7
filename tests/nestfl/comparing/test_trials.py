"""Overrides of a comparison expand into its trials."""

from __future__ import annotations

from pathlib import Path

import pytest

from nestfl.comparing.trials import comparison_name, expand, same_value, short_name
from server_app.config.composing import compose
from server_app.config.typed import ConfigError


def names(*overrides: str) -> list[str]:
    return [str(trial) for trial in expand(overrides)]


def test_all_combinations_are_run_seed_by_seed() -> None:
    assert names("strategy=scalefl,heterofl", "seed=0,1", "rounds=3") == [
        "strategy=scalefl seed=0",
        "strategy=heterofl seed=0",
        "strategy=scalefl seed=1",
        "strategy=heterofl seed=1",
    ]


def test_a_trial_is_given_its_choices_and_what_all_have() -> None:
    trial = expand(["rounds=3", "strategy=scalefl,heterofl", "train.lr=0.1"])[1]
    assert trial.overrides == ["rounds=3", "train.lr=0.1", "strategy=heterofl"]


@pytest.mark.parametrize(
    ("override", "values"),
    [
        ("seed=range(0,3)", ["0", "1", "2"]),
        ("seed=choice(4,7)", ["4", "7"]),
        ("strategy.widths=[0.5,1],[0.25,1]", ["[0.5,1]", "[0.25,1]"]),
        ("dataset.alpha=100,0.5", ["100", "0.5"]),
    ],
)
def test_values_are_listed_as_in_hydras_multirun(override: str, values: list[str]) -> None:
    key = override.partition("=")[0]
    assert [trial.choices[key] for trial in expand([override])] == values


def test_a_list_in_brackets_or_quotes_is_one_value() -> None:
    trials = expand(["strategy.widths=[0.5,1]", "dataset.path='a,b'", "seed=0,1"])
    assert {key for trial in trials for key in trial.choices} == {"seed"}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["rounds=3"], "nothing to compare: expected a key with several values"),
        (["seed=0,1", "seed=2,3"], "seed is given twice: list its values in one, seed=A,B"),
        (["seed=0,0"], "seed lists 0 twice"),
        (["strategy"], "'strategy' is no override"),
        (["name=a,b"], "name has several values"),
        (["engine=ray,local"], "engine has several values"),
        (["strategy=glob(*)"], "expected values, strategy=A,B"),
        (["seed=0,1", "resume=runs/a"], "resume=runs/a: a comparison goes on by itself"),
        (
            ["strategy=scalefl,fedavg", "heterofl.dynamic=true"],
            "^heterofl.dynamic: expected one of the strategies that are compared: scalefl, fedavg$",
        ),
        (["seed=0,1", "heterofl.dynamic=true"], "compared: none, give strategy=heterofl,...$"),
        (
            ["strategy=scalefl,fedavg", "scalefi.beta=1"],
            "scalefi.beta: no key 'scalefi'; .*scalefl",
        ),
        (["strategy=scalefl,fedavg", "trian.lr=1"], "trian.lr: no key 'trian'; .*train"),
        (
            ["strategy=heterofl", "heterofl.dynamic=true,false"],
            "heterofl.dynamic is for one of several strategies: give strategy.dynamic for all",
        ),
        (
            ["strategy=heterofl,scalefl", "heterofl.cost=macs", "strategy.cost=macs,memory"],
            "heterofl.cost is for one of several strategies",
        ),
    ],
)
def test_what_makes_no_comparison_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        expand(overrides)


def test_an_option_of_one_strategy_is_given_to_its_trials_alone() -> None:
    asked = ["strategy=scalefl,heterofl", "seed=0,1", "scalefl.beta=0,0.1", "train.lr=0.1"]
    trials = expand([*asked, "heterofl.widths=[0.5,1]", "strategy.cost=macs"])
    assert [str(trial) for trial in trials[:3]] == [
        "strategy=scalefl seed=0 scalefl.beta=0",
        "strategy=scalefl seed=0 scalefl.beta=0.1",
        "strategy=heterofl seed=0 heterofl.widths=[0.5,1]",
    ]
    assert len(trials) == 6
    given = ["train.lr=0.1", "strategy.cost=macs", "strategy=heterofl", "seed=0"]
    assert trials[2].overrides == [*given, "strategy.widths=[0.5,1]"]
    assert short_name(trials[2].group) == "heterofl widths=[0.5,1]"
    assert comparison_name(trials) == comparison_name(
        expand(asked[:2] + asked[3:] + ["strategy.cost=macs"])
    )
    compose(trials[2].overrides)


@pytest.mark.parametrize(
    ("one", "more"), [("true", "true,false"), ("0.10", "0.1,1"), ("~/a", "~/a,b")]
)
def test_one_more_value_of_an_option_of_one_strategy_leaves_names_as_they_were(
    one: str, more: str
) -> None:
    alone, both = (
        {trial.name for trial in expand(["strategy=a,b", f"a.x={values}"])}
        for values in (one, more)
    )
    assert len(alone) == 2
    assert alone < both


def test_names_of_runs_are_names_of_folders_and_differ() -> None:
    trials = expand(["dataset.path=/a/b,/a-b,a/b", f"name={'x' * 10}"])
    found = [trial.name for trial in trials]
    assert len(set(found)) == 3
    assert all("/" not in name and len(name) <= 120 for name in found)
    long = expand([f"model.weights={'a' * 200},{'a' * 201}"])
    assert len({trial.name for trial in long}) == 2
    assert all(len(trial.name) <= 120 for trial in long)


def test_one_more_value_goes_to_the_same_folder_and_another_setting_does_not() -> None:
    two = expand(["strategy=scalefl,heterofl", "seed=0,1", "rounds=3"])
    more = expand(["seed=0,1,2", "strategy=scalefl,heterofl,fedavg", "rounds=3"])
    other = expand(["strategy=scalefl,heterofl", "seed=0,1", "rounds=4"])
    assert comparison_name(two) == comparison_name(more) != comparison_name(other)
    assert {trial.name for trial in two} < {trial.name for trial in more}


def test_paths_are_absolute_for_every_value(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/someone")
    given = [trial.overrides[0] for trial in expand(["dataset.path=a,b"])]
    assert given == [f"dataset.path={tmp_path}/a", f"dataset.path={tmp_path}/b"]
    given = [trial.overrides[0] for trial in expand(["dataset.path=~/a,~/b"])]
    assert given == ["dataset.path=/home/someone/a", "dataset.path=/home/someone/b"]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [("false", "False", True), ("1e-3", "0.001", True), ("0.1", "0.10", True), ("a", "b", False)],
)
def test_values_are_the_same_however_they_are_typed(one: str, other: str, same: bool) -> None:
    assert same_value(one, other) is same


def test_short_names_leave_out_what_goes_without_saying() -> None:
    assert short_name({"strategy": "scalefl", "dataset.alpha": "1"}) == "scalefl dataset.alpha=1"
