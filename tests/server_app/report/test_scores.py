"""Accuracy by round, bytes and seconds, and the front of accuracy and cost."""

from __future__ import annotations

import re
from typing import Any

import pytest

from server_app.report.charts import PERPLEXITY, Axis, Dot, Figure, Scale, front_of, plot
from server_app.report.grouping import Group
from server_app.report.run_data import RunData
from server_app.report.scores import accuracy_figures, front_figure, thinned
from tests.support.recorded_runs import fleet, round_of, run_data

ALONE = [Group("one", [run_data([round_of(n, fleet()) for n in (1, 2, 3)], fleet())])]


def levels(accuracy: float) -> dict[str, Any]:
    return {"1": {"accuracy": accuracy, "exits": {"6": {"accuracy": accuracy}}}}


def run_of(*accuracies: float, name: str = "run") -> RunData:
    """Return a run with one level, 100 bytes and 10 seconds a round."""
    lines: list[dict[str, Any]] = [
        {"round": number, "bytes": {"down": 60, "up": 40}, "levels": levels(accuracy),
         "slices": {"1": {"device_seconds": 10.0}}, "mean": accuracy, "worst": accuracy}
        for number, accuracy in enumerate(accuracies, 1)
    ]  # fmt: skip
    return run_data(lines, name=name)


def drawn(figure: Figure, over: str) -> dict[str, list[tuple[float, float]]]:
    """Return the values of a chart's lines, by their names: places undone by its axes."""
    chart = str(figure.charts[over])
    axes = re.search(r'data-axes="([^"]*)"', chart)
    assert axes is not None
    x0, x1, left, right, y0, y1, bottom, top = map(float, axes[1].split())
    found = {}
    for name, points in re.findall(r'data-name="([^"]*)" points="([^"]*)"', chart):
        pairs = [tuple(map(float, point.split(","))) for point in points.split()]
        found[name] = [(round(x0 + (x - left) / (right - left) * (x1 - x0), 1),
                        round(y0 + (y - bottom) / (top - bottom) * (y1 - y0), 2))
                       for x, y in pairs]  # fmt: skip
    return found


def test_a_run_has_curves_of_its_levels_of_their_exits_and_of_its_scores() -> None:
    figures = accuracy_figures(ALONE)
    assert [figure.title for figure in figures] == [
        "All levels", "Exits of level 2", "Exits of level 3", "Exits of level 4", "Scores",
    ]  # fmt: skip
    assert figures[0].legend == [(n, f"level {n + 1}") for n in range(4)]
    assert [name for _, name in figures[2].legend] == ["exit 6", "exit 7", "exit 8"]
    assert [name for _, name in figures[4].legend] == ["mean", "worst", "local", "global"]


def test_curves_go_by_rounds_by_bytes_and_by_the_devices_seconds() -> None:
    (figure, _) = accuracy_figures([Group("one", [run_of(0.2, 0.4, 0.6)])])
    assert drawn(figure, "rounds") == {"level 1": [(1, 0.2), (2, 0.4), (3, 0.6)]}
    assert drawn(figure, "bytes") == {"level 1": [(100, 0.2), (200, 0.4), (300, 0.6)]}
    assert drawn(figure, "seconds") == {"level 1": [(10, 0.2), (20, 0.4), (30, 0.6)]}


def test_the_curve_of_several_seeds_is_their_mean_with_a_band_around_it() -> None:
    group = Group("both", [run_of(0.2, 0.4), run_of(0.4, 0.4, 0.9)])
    (figure, _) = accuracy_figures([group])
    assert drawn(figure, "rounds") == {"level 1": [(1, 0.3), (2, 0.4)]}
    assert 'class="band c0"' in figure.charts["rounds"]
    (figure, _) = accuracy_figures([Group("one", [run_of(0.2, 0.4)])])
    assert "band" not in figure.charts["rounds"]


def test_several_groups_have_a_curve_each_in_every_figure() -> None:
    groups = [Group("a", [run_of(0.2, 0.4)]), Group("b", [run_of(0.3, 0.5)])]
    figures = accuracy_figures(groups)
    assert [figure.title for figure in figures] == ["Mean of the levels", "Worst level", "Level 1"]
    assert all(figure.legend == [(0, "a"), (1, "b")] for figure in figures)
    assert drawn(figures[0], "rounds") == {"a": [(1, 0.2), (2, 0.4)], "b": [(1, 0.3), (2, 0.5)]}


def test_what_was_not_recorded_has_no_curve() -> None:
    run = run_data([{"round": 1, "levels": levels(0.5)}])
    (figure,) = accuracy_figures([Group("old", [run])])
    assert list(figure.charts) == ["rounds"]
    assert accuracy_figures([Group("none", [run_data([{"round": 1}])])]) == []


def test_of_many_points_so_many_are_drawn_with_the_first_and_the_last() -> None:
    assert thinned(range(5), 5) == [0, 1, 2, 3, 4]
    assert thinned(range(101), 5) == [0, 25, 50, 75, 100]


def test_the_front_is_what_nothing_as_cheap_surpasses() -> None:
    places = [(1, 0.3), (2, 0.2), (2, 0.5), (3, 0.5), (4, 0.4), (5, 0.9)]
    front = front_of("all", 0, [Dot(x, y, f"{x} {y}", 0) for x, y in places])
    assert [dot.text for dot in front.dots if not dot.hollow] == ["1 0.3", "2 0.5", "5 0.9"]
    assert front.points == [(1, 0.3), (2, 0.3), (2, 0.5), (5, 0.5), (5, 0.9)]


def test_dots_on_the_front_are_filled_and_joined() -> None:
    dots = [Dot(1, 0.2, "low", 0), Dot(2, 0.1, "worse", 0), Dot(3, 0.4, "high", 0)]
    chart = str(plot("", [front_of("all", 0, dots)], Scale("MACs")))
    kinds = re.findall(r'<circle class="([^"]*)"[^>]*><title>(\w+)', chart)
    assert kinds == [("dot c0", "low"), ("dot hollow c0", "worse"), ("dot c0", "high")]
    line = re.search(r'class="front c0" data-name="all" points="([^"]*)"', chart)
    assert line is not None
    (x1, y1), corner, (x3, y3) = (point.split(",") for point in line[1].split())
    assert corner == [x3, y1]
    assert float(x1) < float(x3)
    assert float(y1) > float(y3)  # places go down


def texts(figure: Figure | None) -> list[str]:
    assert figure is not None
    return re.findall(r"<circle[^>]*><title>([^<]*)", str(figure.charts["macs"]))


def test_the_front_has_a_dot_for_each_level_and_exit() -> None:
    found = texts(front_figure(ALONE))
    assert len(found) == 1 + 2 + 3 + 4
    # In round 3 the best reach 0.9 x 3/5 = 0.54. Level 2 of four has an exit after unit 6 of 7, at
    # 2 M x 6 // 7 MACs and at 0.54 - 0.06 - 0.01, and its own answer at 2 M and at 0.54 - 0.04.
    assert found[1:3] == ["exit 6 of level 2: 47.0 % for 1.71 M MACs",
                          "level 2: 50.0 % for 2 M MACs"]  # fmt: skip


def test_budgets_are_small_dots_of_the_mean_over_seeds() -> None:
    lines, record = [round_of(1, fleet())], fleet()
    budgets = [{"2": [{"budget": 0.75, "macs": macs, "accuracy": accuracy}]}
               for macs, accuracy in ((1e6, 0.5), (2e6, 0.7))]  # fmt: skip
    runs = [run_data(lines, record, recorded_budgets=each) for each in budgets]
    figure = front_figure([Group("both", runs)])
    text = "level 2 with a budget of 75%: 60.0 % for 1.5 M MACs"
    assert text in texts(figure)
    assert figure is not None
    assert re.findall(r'r="2.5"><title>([^<]*)', str(figure.charts["macs"])) == [text]
    several = texts(front_figure([Group("both", runs), ALONE[0]]))
    assert f"both, {text}" in several


def test_an_untrained_level_has_no_dot() -> None:
    line = round_of(1, fleet())
    line["levels"]["3"]["lack"] = "untrained"
    found = texts(front_figure([Group("one", [run_data([line], fleet())])]))
    assert len(found) == 1 + 2 + 4
    assert not [text for text in found if "level 3" in text]


def test_there_is_no_front_of_a_run_that_did_not_record_what_levels_cost() -> None:
    assert front_figure([Group("old", [run_data([round_of(1, fleet())])])]) is None


def test_an_accuracy_s_axis_begins_and_ends_at_a_tick() -> None:
    axis = Axis.upward([0.13, 0.62])
    assert (axis.low, round(axis.high, 9)) == (0.1, 0.7)
    assert axis.ticks(7) == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7]
    for values in ([0.0], [1.0], [0.5, 0.5], [0.0, 1.0], [0.58, 0.6]):
        axis = Axis.upward(values)
        assert axis.low <= min(values) <= max(values) <= axis.high
        ticks = axis.ticks(7)
        assert (ticks[0], ticks[-1]) == (round(axis.low, 12), round(axis.high, 12))
        assert len(ticks) <= 8


@pytest.mark.parametrize("value", [0.0, 0.5, 0.98, 1.0])
def test_where_all_accuracies_are_the_same_the_axis_stays_within_0_and_100_percent(
    value: float,
) -> None:
    (figure, _) = accuracy_figures([Group("flat", [run_of(value, value, value)])])
    assert drawn(figure, "rounds") == {"level 1": [(1, value), (2, value), (3, value)]}
    axis = Axis.upward([value] * 3)
    assert 0 <= axis.low <= value <= axis.high <= 1
    labels = [axis.scale.text(tick) for tick in axis.ticks(7)]
    assert len(set(labels)) == len(labels) >= 3
    if value == 1.0:
        assert labels == ["99 %", "99.2 %", "99.4 %", "99.6 %", "99.8 %", "100 %"]


def test_a_perplexity_that_does_not_change_has_an_axis_of_different_ticks() -> None:
    axis = Axis.upward([120.0, 120.0], PERPLEXITY)
    labels = [axis.scale.text(tick) for tick in axis.ticks(7)]
    assert len(set(labels)) == len(labels) >= 3


def test_labels_of_levels_that_are_always_right_are_inside_the_picture() -> None:
    record = fleet()
    line = round_of(1, record)
    for level in line["levels"].values():
        level["accuracy"] = 1.0
        for each in level["exits"].values():
            each["accuracy"] = 1.0
    figure = front_figure([Group("right", [run_data([line], record)])])
    assert figure is not None
    places = re.findall(r'class="label"[^>]* y="([^"]*)"', str(figure.charts["macs"]))
    assert len(places) == 4
    assert all(float(place) > 9 for place in places)  # letters are 9 high


def test_rounds_are_told_in_whole_numbers() -> None:
    scale = Scale("round", "whole")
    assert Axis(scale, 1, 3, 0, 1).ticks(6) == [1, 2, 3]
    assert scale.text(1200) == "1200"
    assert Scale("bytes", unit="B").text(1200) == "1.2 kB"
