"""Classes in a report: accuracies by level, matrices, and pairs that are confused."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from server_app.record.files import CONFUSION_FILE
from server_app.record.metrics import write_confusion
from server_app.report.blocks import Block, Figures, Table, Text
from server_app.report.charts import Figure
from server_app.report.class_section import class_blocks, matrix_chart
from server_app.report.grouping import Group
from server_app.report.page import write_report
from server_app.report.run_data import RunData
from tests.server_app.report.chromium import Browser, chromium
from tests.support.recorded_runs import fleet, round_of, run_data, write_run

CATS = [[3, 1, 0], [0, 4, 0], [2, 0, 0]]
"""Of 4 cats one is taken for a dog, all 4 dogs are right, and both cows are taken for cats."""
NAMES = ["cat", "dog", "cow"]


def line_of(number: int, by_level: dict[str, list[list[int]]], **more: Any) -> dict[str, Any]:
    """Return a round's line with a test that had these answers."""
    levels = {name: {"accuracy": 0.5, "right": [row[n] for n, row in enumerate(counts)]}
              for name, counts in by_level.items()}  # fmt: skip
    sizes = [sum(row) for row in next(iter(by_level.values()))]
    return {"round": number, "levels": levels, "class_sizes": sizes, **more}


def run_of(by_level: dict[str, list[list[int]]], names: list[str] = NAMES) -> RunData:
    record = {**fleet(4), "classes": names}
    lines = [line_of(1, by_level), {"round": 2}]
    return run_data(lines, record, confusion={"round": 1, "levels": by_level})  # type: ignore[arg-type]


class Section:
    """The blocks about the classes of groups, by their kind."""

    def __init__(self, *groups: Group) -> None:
        blocks: list[Block] = class_blocks(groups)
        self.sentence = "".join(each.text for each in blocks if isinstance(each, Text))
        self.table, *self.confused = (each for each in blocks if isinstance(each, Table))
        self.matrices: list[Figure] = [
            figure for each in blocks if isinstance(each, Figures) for figure in each.figures
        ]

    @property
    def shares(self) -> list[list[str]]:
        """The cells of the classes' table without the class and its examples."""
        return [list(row[2:]) for row in self.table.rows]


def test_a_class_s_accuracy_is_the_share_of_its_examples_that_a_level_has_right() -> None:
    other = [[4, 0, 0], [0, 2, 2], [0, 0, 2]]
    found = Section(Group("one", [run_of({"1": CATS, "2": other})]))
    assert found.table.columns == ["class", "examples", "level 1", "level 2"]
    assert found.table.rows == [
        ["cat", "4", "75.0 %", "100.0 %"],
        ["dog", "4", "100.0 %", "50.0 %"],
        ["cow", "2", "0.0 %", "100.0 %"],
    ]
    assert found.sentence == "Lowest on average: cow (50.0 %). Highest: cat (87.5 %)."


def test_what_is_confused_most_often_over_all_levels_comes_first() -> None:
    found = Section(Group("one", [run_of({"1": CATS, "2": [[2, 2, 0], [0, 4, 0], [0, 0, 2]]})]))
    (confused,) = found.confused
    assert confused.columns == ["class", "taken for", "level 1", "level 2"]
    assert confused.rows == [
        ["cat", "dog", "25.0 %", "50.0 %"],
        ["cow", "cat", "100.0 %", "0.0 %"],
    ]
    right = Section(Group("one", [run_of({"1": [[4, 0], [0, 4]]}, ["a", "b"])]))
    assert right.confused == []


def test_runs_of_a_group_are_added_up_and_groups_stand_side_by_side() -> None:
    other = [[1, 3, 0], [0, 4, 0], [0, 0, 2]]
    runs = [run_of({"1": CATS}), run_of({"1": other})]
    both = Section(Group("both", runs))
    assert both.shares == [["50.0 %"], ["100.0 %"], ["50.0 %"]]
    assert both.table.rows[0][1] == "8"
    (figure,) = both.matrices
    assert 'data-matrix="4,4,;,8,;2,,2"' in figure.charts["classes"]
    apart = Section(Group("a", runs[:1]), Group("b", runs[1:]))
    assert apart.table.columns == ["class", "examples", "a", "b"]
    assert apart.shares == [["75.0 %", "25.0 %"], ["100.0 %"] * 2, ["0.0 %", "100.0 %"]]
    assert not apart.matrices


def test_groups_are_told_by_the_levels_that_clients_hold() -> None:
    run = run_of({"1": CATS, "2": [[0, 4, 0], [0, 0, 4], [2, 0, 0]]})
    run.lines[0]["levels"]["2"]["lack"] = "untrained"
    found = Section(Group("a", [run]), Group("b", [run]))
    assert found.shares == [["75.0 %"] * 2, ["100.0 %"] * 2, ["0.0 %"] * 2]
    alone = Section(Group("a", [run]))
    assert alone.table.columns[2:] == ["level 1", "level 2 (untrained)"]


def test_a_group_of_other_classes_is_left_out() -> None:
    other = run_of({"1": [[1, 1], [0, 2]]}, ["yes", "no"])
    found = Section(Group("a", [run_of({"1": CATS})]), Group("b", [other]))
    assert found.table.columns[2:] == ["a"]


def test_a_class_without_examples_has_no_accuracy_and_one_without_a_name_its_number() -> None:
    found = Section(Group("a", [run_of({"1": [[0, 0], [1, 1]]}, [])]))
    assert found.table.rows == [["0", "0", "-"], ["1", "2", "50.0 %"]]
    assert found.sentence == ""


def test_matrices_of_another_round_than_the_one_that_is_told_are_left_out() -> None:
    run = run_of({"1": CATS})
    assert run.confusion is not None
    found = Section(Group("a", [replace(run, confusion={**run.confusion, "round": 2})]))
    assert len(found.table.rows) == 3
    assert not found.matrices


def test_runs_that_told_no_classes_apart_have_no_such_section(tmp_path: Path) -> None:
    assert class_blocks([Group("a", [run_data([round_of(1, fleet(4))], fleet(4))])]) == []
    damaged = run_data([{"round": 1, "class_sizes": [3, 4], "levels": {"1": {"right": [1]}}}])
    assert class_blocks([Group("a", [damaged])]) == []
    page = tmp_path / "report.html"
    write_report([write_run(tmp_path / "run", [round_of(1, fleet(4))], fleet(4))], page)
    assert 'id="classes"' not in page.read_text()


def test_a_matrix_keeps_its_counts_and_escapes_its_names() -> None:
    names = ['<b>"it\'s"', "dog", "a class with a long name"]
    chart = matrix_chart("Confusion <matrix>", CATS, names)
    told = re.search(r'data-names="([^"]*)"', chart)
    assert told is not None
    assert json.loads(unescape(told[1])) == names
    assert 'data-matrix="3,1,;,4,;2,,"' in chart
    assert "<b>" not in chart
    assert "a class wit…" in chart
    assert re.findall(r'class="label small"[^>]*>(\d+)<', chart) == ["3", "1", "4", "2"]


def cifar100(folder: Path, levels: int = 5) -> Path:
    """Write a run of 100 classes, half of whose 10,000 examples are taken for any class."""
    drawn, record = random.Random(0), fleet(20)
    counts: dict[str, list[list[int]]] = {}
    for level in range(1, levels + 1):
        matrix = [[0] * 100 for _ in range(100)]
        for label in range(100):
            matrix[label][label] += 50
            for _ in range(50):
                matrix[label][drawn.randrange(100)] += 1
        counts[str(level)] = matrix
    line = round_of(1, record)
    line["levels"] = line_of(1, counts)["levels"]
    line["class_sizes"] = [100] * 100
    run = write_run(folder, [line], {**record, "classes": [f"class_{n}" for n in range(100)]})
    write_confusion(run / CONFUSION_FILE, {"round": 1, "levels": counts})
    return run


def test_the_matrices_of_100_classes_leave_the_page_below_a_megabyte(tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    write_report([cifar100(tmp_path / "run")], page)
    assert page.read_text().count("data-matrix=") == 5
    assert page.stat().st_size < 1_000_000


def test_of_more_classes_than_can_be_drawn_the_pairs_are_named() -> None:
    classes = 150
    matrix = [
        [3 if answer == label else 0 for answer in range(classes)] for label in range(classes)
    ]
    matrix[7][9] = 2
    found = Section(Group("a", [run_of({"1": matrix}, [f"c{n}" for n in range(classes)])]))
    assert not found.matrices
    assert found.confused[0].rows == [["c7", "c9", "40.0 %"]]


def test_of_a_thousand_classes_the_lowest_are_listed() -> None:
    right = [n % 10 for n in range(1000)]
    levels = {str(level): {"right": right} for level in range(1, 6)}
    run = run_data([{"round": 1, "class_sizes": [10] * 1000, "levels": levels}])
    table = Section(Group("a", [run])).table
    assert len(table.rows) == 480
    assert [row[0] for row in table.rows[:3]] == ["0", "10", "20"]
    assert table.notes[0].endswith("Shown are the 480 classes of 1000 with the least accuracy.")


def test_the_figures_folder_has_the_matrices_in_their_own_height(tmp_path: Path) -> None:
    write_report([cifar100(tmp_path / "run", 1)], tmp_path / "a.html", figures=tmp_path / "figures")
    svg = (tmp_path / "figures" / "confusion-matrix-of-level-1-classes.svg").read_text()
    heights = [float(each) for each in re.findall(r'viewBox="0 0 400 ([\d.]+)"', svg)]
    assert heights[0] > heights[1] > 380


def test_pointing_at_a_cell_tells_what_was_taken_for_what(tmp_path: Path) -> None:
    program = chromium()
    if program is None:
        pytest.skip("Chromium is not installed (on Debian: apt install chromium)")
    record = {**fleet(4), "classes": NAMES}
    line = round_of(1, fleet(4))
    line |= {"levels": line_of(1, {"1": CATS})["levels"], "class_sizes": [4, 4, 2]}
    run = write_run(tmp_path / "run", [line], record)  # type: ignore[arg-type]
    write_confusion(run / CONFUSION_FILE, {"round": 1, "levels": {"1": CATS}})
    write_report([run], tmp_path / "report.html")
    with Browser(program, tmp_path / "profile") as browser:
        browser.show(tmp_path / "report.html", 1280)
        # The names take 14 + 3 x 5.2 of 400; a third of the rest, 356.4, is a cell.
        for across, down, told in [(0.25, 0.8, "cow taken for cat: 2 of 2 (100.0 %)"),
                                   (0.25, 0.1, "cat is right: 3 of 4 (75.0 %)"),
                                   (0.9, 0.1, "cat taken for cow: 0 of 4 (0.0 %)")]:  # fmt: skip
            browser.point_at("svg[data-matrix]", across, down)
            assert browser.value("document.getElementById('tip').textContent") == told
        assert browser.value("document.querySelectorAll('.cursor').length") == 1
        browser.point_at("svg[data-matrix]", 0.02, 0.98)  # beside the cells
        assert browser.value("document.getElementById('tip').style.display") == "none"
        assert browser.value("document.querySelectorAll('.cursor').length") == 0
        assert browser.complaints == []
