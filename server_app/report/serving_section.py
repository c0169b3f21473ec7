"""Collaborative inference of a fleet's nodes: their tree, and accuracy under serving settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from inference.topology import Node, Topology
from server_app.config.typed import ConfigError, build
from server_app.record.serving_settings import (
    SERVING,
    Cell,
    UnderSettings,
    best_of,
    cells_of,
    serving_of,
    sorted_settings,
)
from server_app.report.amounts import percent
from server_app.report.blocks import Block, Figures, Table
from server_app.report.charts import (
    LEFT,
    RIGHT,
    WIDTH,
    Dot,
    Figure,
    Scale,
    Series,
    element,
    plot,
    stroke,
    svg,
    text,
    tint,
)
from server_app.report.grouping import ABSENT, Group, accuracies, grouped
from server_app.report.run_data import RunData
from server_app.report.scores import Line, figures_of
from strategies.federation import FleetConfig

SYSTEM = "system"
TITLE = "Accuracy of the system by serving setting"
ASIDE = 3.0  # distance between dots of the same setting
# Of the tree: top of its first row; heights of a row, of a node, and of the room below the last.
FIRST, ROW, BOX, BELOW = 16.0, 88.0, 40.0, 20.0
GAP, WIDEST, LETTER = 4.0, 92.0, 6.0  # room beside a node; widths of the widest, and of a letter
NAMED = 48.0  # width from which on a node has room for its name
MOST_IN_A_ROW = 16  # nodes beside each other that leave room for their rates
TREE_NOTE = (
    "In requests per second: ↑ arrives at a node, the number in it is served, and that of a line "
    "transferred."
)
EXITS_NOTE = (
    "Requests per second. An exit's accuracy is that of the level with its number, as if it "
    "answered all test samples; the system's is of what nodes serve: each answers what it is "
    "surest of, and transfers the rest."
)
SETTINGS_NOTE = (
    "By serving setting a line through a dot is the deviation over seeds; a filled dot is of runs "
    "that were trained for the setting."
)


def serving_blocks(
    groups: Sequence[Group],
    labels: Mapping[Path, Mapping[str, str]] | None = None,
    with_settings: bool = True,
) -> list[Block]:
    """Return the nodes of one group, and the settings; nothing where no run has a system.

    `with_settings` has the settings' table, too.
    """
    runs = [run for group in groups for run in group.runs]
    if not any("cis" in run.summary for run in runs):
        return []
    alike = grouped(runs, labels, besides=(SERVING,))
    variants = [
        Variant(each.name if len(alike) > 1 else SYSTEM, cells_of([*map(_settings, each.runs)]))
        for each in alike
    ]
    blocks, figures = list[Block](), list[Figure]()
    if len(groups) == 1:
        topology = topology_of(runs[0])
        figures += _by_round(groups[0], topology)
        tree = tree_chart(topology) if topology else None
        if tree is not None:
            blocks.append(Figures([Figure("Nodes, by exit", [], {"nodes": tree})], [TREE_NOTE]))
        if topology:
            blocks.append(_exits_table(groups[0], topology))
    if with_settings and (table := settings_table(variants)):
        blocks.append(table)
    figures += filter(None, [settings_figure(variants)])
    return [*blocks, *([Figures(figures, [SETTINGS_NOTE])] if figures else [])]


def topology_of(run: RunData) -> Topology | None:
    """Return the nodes of a run's config; None where it has none, or none that can be read."""
    fleet = run.config.get("fleet")
    try:
        return build(FleetConfig, fleet).topology if isinstance(fleet, Mapping) else None
    except ConfigError:
        return None


def _settings(run: RunData) -> UnderSettings:
    fleet = run.config.get("fleet")
    setting = fleet.get("serving") if isinstance(fleet, Mapping) else None
    return UnderSettings.of(run.seed, serving_of(setting), run.summary)


def _exits_table(group: Group, topology: Topology) -> Table:
    """Return the requests that the nodes of each exit serve, and its accuracy; the system last."""
    rows = []
    for number, rate in enumerate(topology.exit_rates, 1):
        nodes = [node for node in topology.nodes if node.exit == number]
        arrival, share = sum(node.arrival for node in nodes), topology.exit_shares[number - 1]
        alone = accuracies(group.values("levels", str(number), "accuracy"))
        rows.append([f"exit {number}", str(len(nodes)), f"{arrival:.3g}", f"{rate:.3g}",
                     percent(share), alone])  # fmt: skip
    total = f"{sum(topology.exit_rates):.3g}"
    rows.append([SYSTEM, str(len(topology.nodes)), total, total, percent(1.0),
                 accuracies(group.values("cis"))])  # fmt: skip
    columns = ["", "nodes", "arrive", "served", "share", "accuracy"]
    return Table("What exits serve", columns, rows, [EXITS_NOTE])


def _by_round(group: Group, topology: Topology | None) -> list[Figure]:
    """Return the accuracy of the system and of its exits by round."""
    exits = topology.exits if topology else 0
    lines: list[Line] = [
        (number, f"exit {number + 1}", group, ("levels", str(number + 1), "accuracy"))
        for number in range(exits)
    ]
    found = figures_of({"System and exits": [*lines, (exits, SYSTEM, group, ("cis",))]})
    return [Figure(each.title, each.legend, {"rounds": each.charts["rounds"]}) for each in found]


@dataclass(frozen=True)
class Variant:
    """Runs that differ in the setting they were trained for, and in their seed."""

    name: str
    cells: Mapping[str, Cell]


def settings_of(variants: Sequence[Variant]) -> list[str]:
    """Return the settings that any was tested under, in the order of the paper."""
    return sorted_settings(setting for each in variants for setting in each.cells)


def settings_table(variants: Sequence[Variant]) -> Table | None:
    """Return the accuracy of variants under settings; None where there are no two settings."""
    settings = settings_of(variants)
    if len(settings) < 2:
        return None
    columns, rows = [""], [[variant.name] for variant in variants]
    for setting in settings:
        cells = [variant.cells.get(setting) for variant in variants]
        best, own = best_of(cells), any(cell is not None and cell.own for cell in cells)
        columns.append(f"{setting} (own)" if own else setting)
        for row, cell in zip(rows, cells, strict=True):
            row.append(ABSENT if cell is None else f"{'* ' * (cell in best)}{cell.percents}")
    notes, several = [
        "Share of the test samples that the system answers right where exits 1, 2 and so on answer "
        "as many percent of them."
    ], len(variants) > 1  # fmt: skip
    if any(cell.own for variant in variants for cell in variant.cells.values()):
        notes.append("Own: what runs were trained for (fleet.serving)."
                     + " Other runs of a row are not in such a column." * several)  # fmt: skip
    if several:
        notes.append("*: the best of a column without gaps. A gap: a row's runs were trained for "
                     "several settings, but none for this one.")  # fmt: skip
    return Table(f"{TITLE}, in percent", columns, rows, notes)


def settings_figure(variants: Sequence[Variant]) -> Figure | None:
    """Return the same as a chart with a line for each; None where there is no table."""
    settings = settings_of(variants)
    if len(settings) < 2:
        return None
    drawn = [(number, variant) for number, variant in enumerate(variants) if variant.cells]
    step = ASIDE * len(settings) / (WIDTH - RIGHT - LEFT)
    series = []
    for place, (colour, variant) in enumerate(drawn):
        dots = []
        for number, setting in enumerate(settings):
            if cell := variant.cells.get(setting):
                own = ", trained for it" * cell.own
                told = f"{variant.name}, {setting}: {cell.percents} %{own}"
                x, off = number + step * (place - (len(drawn) - 1) / 2), cell.deviation or 0.0
                dots.append(Dot(x, cell.mean, told, colour, "", (cell.mean - off, cell.mean + off),
                                radius=3, hollow=not cell.own))  # fmt: skip
        points = [(dot.x, dot.y) for dot in dots]
        series.append(Series(variant.name, colour, points, dots=dots))
    across = Scale("percent of the requests that exits 1, 2, ... answer", names=settings)
    legend = [(number, variant.name) for number, variant in drawn]
    return Figure(TITLE, legend, {"settings": plot(TITLE, series, across)})


def tree_chart(topology: Topology) -> Markup | None:
    """Draw the nodes with their arrivals, served shares and transfers; None if they are too many.

    There is a row for each exit, the last on top.
    """
    exits = range(topology.exits, 0, -1)
    rows = [[node for node in topology.nodes if node.exit == number] for number in exits]
    most = max(map(len, rows))
    if most > MOST_IN_A_ROW:
        return None
    places = {
        node.name: (WIDTH * (number + 0.5) / len(row), FIRST + ROW * down + BOX / 2)
        for down, row in enumerate(rows)
        for number, node in enumerate(row)
    }
    width = min(WIDEST, WIDTH / most - GAP)
    marks = [mark for node in topology.nodes for mark in _edges(node, topology, places)]
    for node in topology.nodes:
        marks += _box(node, topology, places[node.name], width)
    marks += [text(2, FIRST + ROW * down - 5, f"exit {number}", "label", "start")
              for down, number in enumerate(exits)]  # fmt: skip
    return svg("Nodes, by exit", marks, FIRST + ROW * (len(rows) - 1) + BOX + BELOW)


def _edges(
    node: Node, topology: Topology, places: Mapping[str, tuple[float, float]]
) -> list[Markup]:
    """Draw a node's transfers to its parents, each with its rate."""
    (x, y), marks = places[node.name], []
    for parent, share in node.divided.items():
        above, top = places[parent]
        start, end = y - BOX / 2, top + BOX / 2
        rate = topology.rates[node.name].transfer * share
        told = f"{node.name} transfers {rate:.3g} requests per second to {parent}"
        marks.append(stroke("axis", (x, start), (above, end), told))
        near = 0.3  # of the way: children of one parent are further apart at their end
        beside, there = x + near * (above - x) + 3, start + near * (end - start) + 3
        marks.append(text(beside, there, f"{rate:.3g}", "label", "start"))
    return marks


def _box(node: Node, topology: Topology, place: tuple[float, float], width: float) -> list[Markup]:
    """Draw a node with its name, its served share, and the inputs that arrive there first."""
    (x, y), rates = place, topology.rates[node.name]
    told = (
        f"{node.name}, exit {node.exit}, in requests per second: {node.arrival:.3g} arrive here, "
        f"{rates.incoming:.3g} come in, {rates.serving:.3g} are served, {rates.transfer:.3g} "
        "transferred"
    )
    marks = [element("rect", f"node {tint(node.exit - 1)}", title=told, x=x - width / 2,
                     y=y - BOX / 2, width=width, height=BOX, rx=5)]  # fmt: skip
    if width >= NAMED:
        most = int(width / LETTER)
        name = node.name if len(node.name) <= most else f"{node.name[: most - 1]}…"
        marks.append(text(x, y - 5, name, "label"))
        marks.append(text(x, y + 10, f"serves {rates.serving:.3g}", "small"))
    else:
        marks.append(text(x, y + 3, f"{rates.serving:.3g}", "small"))
    if node.arrival:
        x -= width / 3 if node.exit > 1 else 0  # beside what comes in from below
        marks.append(text(x, y + BOX / 2 + 14, f"↑ {node.arrival:.3g}", "small"))
    return marks
