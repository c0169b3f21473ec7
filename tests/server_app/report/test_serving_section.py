"""Collaborative inference in a report: the nodes, the exits' shares, the system's accuracy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml
from markupsafe import Markup

from inference.topology import Node, Topology
from server_app.record.serving_settings import Cell
from server_app.report.blocks import Figures, Table
from server_app.report.charts import Figure
from server_app.report.grouping import Group, grouped
from server_app.report.page import write_report
from server_app.report.run_data import RunData
from server_app.report.scores import accuracy_figures, cards_of, groups_table
from server_app.report.serving_section import (
    MOST_IN_A_ROW,
    Variant,
    serving_blocks,
    settings_figure,
    settings_table,
    topology_of,
    tree_chart,
)
from tests.server_app.report.test_page import SECTIONS
from tests.support.recorded_runs import (
    PAPERS_SETTINGS,
    fleet,
    round_of,
    run_data,
    served,
    tree_of,
    write_run,
)


def system(
    first: float = 0.5, own: str = "80-15-5", weights: str = "equal", seed: int = 0
) -> RunData:
    """Return a run of two rounds, whose system comes to `first` under the first setting."""
    record = fleet(7, 3)
    lines = [served(round_of(n, record), first - 0.1 * (2 - n), 0.05, own) for n in (1, 2)]
    config = {"fleet": tree_of(own), "strategy": {"weights": weights}, "seed": seed}
    return run_data(lines, record, config, name=f"{weights}-{own}-{seed}")


class Section:
    """The blocks about the systems of runs, by their kind."""

    def __init__(self, *runs: RunData, with_settings: bool = True) -> None:
        blocks = serving_blocks(grouped(runs), with_settings=with_settings)
        self.tables = [each for each in blocks if isinstance(each, Table)]
        shown = [figure for each in blocks if isinstance(each, Figures) for figure in each.figures]
        self.trees = [each.charts["nodes"] for each in shown if "nodes" in each.charts]
        self.figures: list[Figure] = [each for each in shown if "nodes" not in each.charts]


def texts(drawing: Markup | None) -> list[str]:
    """Return the texts of a drawing, without the titles of its parts."""
    assert drawing is not None
    return ["".join(each.itertext()) for each in ElementTree.fromstring(drawing).iter("text")]


def titles(drawing: Markup | None) -> list[str]:
    assert drawing is not None
    return [each.text or "" for each in ElementTree.fromstring(drawing).iter("title")]


def test_nodes_are_drawn_with_what_they_serve_and_transfer() -> None:
    (tree,) = Section(system()).trees
    # 25 requests arrive at each of four devices: 20 are served there, and 5 go on. Of the 10 at
    # each edge server, 15 of 20 are served there; the cloud has the rest of both.
    found = texts(tree)
    assert found.count("serves 20") == found.count("5") == found.count("↑ 25") == 4
    assert found.count("serves 7.5") == found.count("2.5") == 2
    assert found.count("serves 5") == 1
    assert {"device1", "device4", "edge2", "cloud", "exit 1", "exit 2", "exit 3"} <= set(found)
    assert (
        "edge1, exit 2, in requests per second: 0 arrive here, 10 come in, 7.5 are served, 2.5 "
        "transferred"
    ) in titles(tree)
    assert "device3 transfers 5 requests per second to edge2" in titles(tree)


def test_a_node_with_two_parents_has_a_line_to_each() -> None:
    nodes = (
        Node("a", 1, ("b", "c"), (3, 1), arrival=8, max_transfer=4),
        *(Node(name, 2) for name in "bc"),
    )
    tree = tree_chart(Topology(nodes))
    found = titles(tree)
    assert "a transfers 3 requests per second to b" in found
    assert "a transfers 1 requests per second to c" in found
    assert texts(tree).count("serves 4") == 1


def test_many_nodes_leave_no_room_for_their_names() -> None:
    def star(leaves: int) -> Topology:
        below = [Node(f"leaf-{n}", 1, ("top",), arrival=1, max_transfer=0.5) for n in range(leaves)]
        return Topology((*below, Node("top", 2)))

    assert "leaf-0" in texts(tree_chart(star(2)))
    many = tree_chart(star(MOST_IN_A_ROW))
    assert "leaf-0" not in texts(many)
    assert texts(many).count("0.5") == 2 * MOST_IN_A_ROW  # served, and transferred
    assert any(told.startswith("leaf-0, exit 1") for told in titles(many))
    assert tree_chart(star(MOST_IN_A_ROW + 1)) is None
    (long,) = (text for text in texts(tree_chart(Topology((Node("x" * 40, 1, arrival=1),))))
               if text.startswith("x"))  # fmt: skip
    assert long == "x" * 14 + "…"


def test_exits_are_told_with_what_they_serve_and_their_accuracy() -> None:
    table = Section(system()).tables[0]
    # In round 2 the best reach 0.9 / 2: levels 1 to 3 are 6, 4 and 2 points below.
    assert table.columns == ["", "nodes", "arrive", "served", "share", "accuracy"]
    assert table.rows == [
        ["exit 1", "4", "100", "80", "80.0 %", "39.0 %"],
        ["exit 2", "2", "0", "15", "15.0 %", "41.0 %"],
        ["exit 3", "1", "0", "5", "5.0 %", "43.0 %"],
        ["system", "7", "100", "100", "100.0 %", "50.0 %"],
    ]
    seeds = Section(system(0.5), system(0.6, seed=1)).tables[0]
    assert seeds.rows[-1][-1] == "55.0 (50.0 to 60.0) %"


def test_the_system_has_a_curve_among_its_exits() -> None:
    figure, settings = Section(system()).figures
    assert [name for _, name in figure.legend] == ["exit 1", "exit 2", "exit 3", "system"]
    assert list(figure.charts) == ["rounds"]
    assert settings.title == "Accuracy of the system by serving setting"


def test_a_run_s_settings_are_a_row_with_its_own_marked() -> None:
    table = Section(system(own="60-30-10")).tables[1]
    marked = [f"{each} (own)" if each == "60-30-10" else each for each in PAPERS_SETTINGS]
    assert table.columns == ["", *marked]
    assert table.rows == [["system", "50.0", "55.0", "60.0", "65.0", "70.0", "75.0", "80.0"]]


def test_several_groups_have_a_row_for_what_differs_besides_their_own_settings() -> None:
    runs = [system(0.5, own, "equal", seed) for own in ("80-15-5", "5-15-80") for seed in (0, 1)]
    runs += [system(first, own, "serving") for first, own in ((0.6, "80-15-5"), (0.4, "5-15-80"))]
    found = Section(*runs)
    assert found.trees == []
    (table,) = found.tables
    assert table.rows == [
        ["strategy.weights=equal", "50.0 ± 0.0", *(f"{n}.0 ± 0.0" for n in (55, 60, 65, 70, 75)),
         "* 80.0 ± 0.0"],
        ["strategy.weights=serving", "* 60.0", *["-"] * 5, "70.0"],
    ]  # fmt: skip
    (figure,) = found.figures
    assert figure.legend == [(0, "strategy.weights=equal"), (1, "strategy.weights=serving")]


def test_the_table_is_left_out_where_a_comparison_has_it() -> None:
    found = Section(system(), system(weights="flops"), with_settings=False)
    assert (found.tables, len(found.figures)) == ([], 1)


def test_settings_are_drawn_with_deviations_and_filled_where_runs_were_trained_for_them() -> None:
    cells = {
        "80-15-5": Cell({"0": 0.4, "1": 0.6}, own=True),
        "5-15-80": Cell({"0": 0.8}, own=False),
    }
    figure = settings_figure([Variant("<i>", cells), Variant("none", {})])
    assert figure is not None
    assert figure.legend == [(0, "<i>")]
    chart = figure.charts["settings"]
    assert titles(chart)[1:] == [
        "<i>, 80-15-5: 50.0 ± 14.1 %, trained for it",
        "<i>, 5-15-80: 80.0 %",
    ]
    assert [each for each in texts(chart) if "-" in each] == ["80-15-5", "5-15-80"]
    assert re.findall(r'<circle class="([^"]*)"', chart) == ["dot c0", "dot hollow c0"]
    heights = re.findall(r'<path class="range c0" d="M[\d.]+ ([\d.]+)L[\d.]+ ([\d.]+)"', chart)
    (middle, _) = (float(each) for each in re.findall(r'cy="([\d.]+)"', chart))
    ((low, high),) = ((float(low), float(high)) for low, high in heights)
    assert middle == pytest.approx((low + high) / 2, abs=0.11)
    assert low > high  # places go down


def test_one_setting_has_neither_table_nor_chart() -> None:
    lone = [Variant("a", {"80-20": Cell({"0": 0.4}, own=True)})]
    assert settings_table(lone) is None
    assert settings_figure(lone) is None


def test_the_system_s_accuracy_stands_beside_mean_and_worst() -> None:
    runs = [system(0.5), system(0.6, weights="serving")]
    table = groups_table(grouped(runs))
    assert table.columns[:5] == ["settings", "runs", "mean", "worst", "cis"]
    assert [row[4] for row in table.rows] == ["50.0 %", "60.0 %"]
    assert "Collaborative system" in [each.title for each in accuracy_figures(grouped(runs))]
    card = cards_of(Group("one", runs[:1]))[2]
    assert card == ("cis", "50.0 %", "the collaborative system")
    scores = accuracy_figures(grouped(runs[:1]))[-1]
    assert "cis" in [name for _, name in scores.legend]


@pytest.mark.parametrize(
    "config",
    [{}, {"fleet": None}, {"fleet": {"clients": 7}}, {"fleet": {"nodes": "?"}},
     {"fleet": {"nodes": [{"name": "a", "exit": 0}], "clients": 1}}],
)  # fmt: skip
def test_of_nodes_that_cannot_be_read_the_system_s_accuracy_is_told_alone(
    config: dict[str, Any],
) -> None:
    run = run_data(system().lines, config=config)  # type: ignore[arg-type]
    assert topology_of(run) is None
    found = Section(run)
    assert found.trees == []
    assert [name for _, name in found.figures[0].legend] == ["system"]


def test_a_report_has_the_section_where_there_is_a_system(tmp_path: Path) -> None:
    record = fleet(7, 3)
    line, config = round_of(1, record), yaml.safe_dump({"fleet": tree_of()})
    runs = {"with": [served(line, 0.5, 0.05)], "without": [line]}
    pages = {}
    for name, lines in runs.items():
        run = write_run(tmp_path / name, lines, record, config)
        write_report([run], tmp_path / "report.html")
        pages[name] = (tmp_path / "report.html").read_text(encoding="utf-8")
    names = [re.findall(r'<section id="(\w+)"', page) for page in pages.values()]
    assert names[1] == SECTIONS
    assert [name for name in names[0] if name not in names[1]] == ["system"]
    assert names[0].index("system") == names[0].index("fleet") - 1
    assert 'href="#system"' in pages["with"]
    assert "serves 7.5" in pages["with"]
    assert "system" not in re.sub(r"<(style|script)>.*?</\1>", "", pages["without"], flags=re.S)
