"""Accuracy of runs under serving settings, and the runs that count for a setting."""

from __future__ import annotations

from typing import Any

import pytest

from server_app.record.serving_settings import (
    Cell,
    UnderSettings,
    best_of,
    cells_of,
    serving_of,
    sorted_settings,
)
from server_app.record.summary import summarise
from tests.support.recorded_runs import PAPERS_SETTINGS


def run(seed: int, own: str | None, **accuracies: float) -> UnderSettings:
    """Return a run; settings are named by letters, as if they were such as 80-15-5."""
    return UnderSettings(str(seed), own, accuracies)


def test_of_runs_with_one_own_setting_all_cells_are_known() -> None:
    found = cells_of([run(0, "a", a=0.5, b=0.6), run(1, "a", a=0.7, b=0.6)])
    assert found == {
        "a": Cell({"0": 0.5, "1": 0.7}, own=True),
        "b": Cell({"0": 0.6, "1": 0.6}, own=False),
    }
    assert found["a"].mean == pytest.approx(0.6)
    assert found["a"].deviation == pytest.approx(0.02**0.5)  # of 0.5 and 0.7
    assert found["a"].percents == "60.0 ± 14.1"
    assert Cell({None: 0.123}, own=False).percents == "12.3"


def test_a_run_that_was_trained_for_another_setting_does_not_stand_for_one() -> None:
    found = cells_of([run(0, "a", a=0.5, b=0.6, c=0.7), run(0, "b", a=0.4, b=0.8, c=0.9)])
    assert found == {"a": Cell({"0": 0.5}, own=True), "b": Cell({"0": 0.8}, own=True)}


def test_runs_that_do_not_depend_on_their_setting_stand_for_all() -> None:
    same = {"a": 0.5, "b": 0.6, "c": 0.7}
    found = cells_of([run(0, "a", **same), run(0, "b", **same), run(1, "a", a=0.4, b=0.4, c=0.4)])
    assert found == {name: Cell({"0": value, "1": 0.4}, own=False) for name, value in same.items()}


def test_runs_of_other_seeds_do_not_tell_whether_the_setting_matters() -> None:
    found = cells_of([run(0, "a", a=0.5, b=0.6, c=0.7), run(1, "b", a=0.5, b=0.6, c=0.7)])
    assert list(found) == ["b", "a"]
    assert found["a"].by_seed == {"0": 0.5}


def test_one_equal_accuracy_among_others_is_a_coincidence() -> None:
    found = cells_of([run(0, "a", a=0.5, b=0.6, c=0.7), run(0, "b", a=0.4, b=0.8, c=0.7)])
    assert "c" not in found


def test_a_setting_of_one_s_own_is_a_cell_too() -> None:
    summary: dict[str, Any] = {"cis": 0.5, "settings": {"80-15-5": 0.25}}
    assert UnderSettings.of(None, "70-20-10", summary).accuracies == {
        "80-15-5": 0.25,
        "70-20-10": 0.5,
    }
    assert UnderSettings.of(None, "80-15-5", summary).accuracies == {"80-15-5": 0.25}
    assert UnderSettings.of(None, None, summary).accuracies == {"80-15-5": 0.25}
    two_exits = [
        UnderSettings.of("0", own, {"cis": cis}) for own, cis in (("80-20", 0.5), ("50-50", 0.7))
    ]
    assert cells_of(two_exits) == {
        "80-20": Cell({"0": 0.5}, own=True),
        "50-50": Cell({"0": 0.7}, own=True),
    }


def test_runs_without_a_system_have_no_cells() -> None:
    assert (
        cells_of([UnderSettings.of("0", None, {"mean": 0.5}), UnderSettings.of("1", None, {})])
        == {}
    )


def test_the_best_are_those_that_look_best() -> None:
    low, high, like_it = (Cell({"0": each}, own=True) for each in (0.747, 0.7491, 0.7489))
    assert best_of([low, high, like_it]) == [high, like_it]
    assert best_of([high]) == []
    assert best_of([low, high, None]) == []  # nobody knows what the third would come to


def test_settings_are_in_the_order_of_the_paper() -> None:
    assert sorted_settings([*reversed(PAPERS_SETTINGS), "5-15-80"]) == PAPERS_SETTINGS
    assert sorted_settings(["9.5-0.5", "80-20", "?"]) == ["80-20", "9.5-0.5", "?"]


@pytest.mark.parametrize(
    ("written", "recorded"), [("80-15-5", "80-15-5"), ("80.0-15-05", "80-15-5"), (None, None)]
)
def test_a_setting_is_known_however_it_is_written(written: str, recorded: str | None) -> None:
    assert serving_of(written) == recorded


def test_the_summary_keeps_the_newest_test_of_the_system() -> None:
    lines: list[Any] = [
        {"round": 1, "cis": 0.2, "settings": {"80-15-5": 0.2}},
        {"round": 2, "cis": 0.4, "settings": {"80-15-5": 0.4}},
        {"round": 3},
    ]
    found = summarise(lines, best={"round": 1, "validation": 0.9, "mean": 0.3, "cis": 0.2})
    assert (found["cis"], found["settings"]) == (0.4, {"80-15-5": 0.4})
    assert found["best"] == {"round": 1, "validation": 0.9, "mean": 0.3, "cis": 0.2}
    assert "settings" not in summarise([{"round": 1, "mean": 0.5}])
