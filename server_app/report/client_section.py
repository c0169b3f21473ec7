"""How accuracy is spread over the clients, and who has least of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median

from server_app.report.amounts import listed, percent
from server_app.report.bars import Lane, lanes_chart
from server_app.report.curves import FEW, Figure
from server_app.report.grouping import Group
from server_app.report.run_data import RunData
from server_app.report.tables import Table, accuracy_over_runs

WORST = 0.1
"""The share of clients whose mean is told apart."""
NAMED = 5
BARS, BARS_OF_MANY = 50, 25
"""Bars of a lane, and where there are more than a few lanes."""


def worst_tenth(scores: Mapping[str, float]) -> float | None:
    """Return the mean accuracy of the tenth of the clients that has the least of it."""
    ordered = sorted(scores.values())
    return fmean(ordered[: math.ceil(WORST * len(ordered))]) if ordered else None


def spread_figures(groups: Sequence[Group]) -> list[Figure]:
    """Return how many clients have which accuracy, for each kind of test."""
    figures = []
    kinds = dict.fromkeys(kind for group in groups for run in group.runs for kind in run.kinds)
    for kind in kinds:
        lanes = _by_level(groups[0].runs[0], kind) if len(groups) == 1 else _by_group(groups, kind)
        lanes = [lane for lane in lanes if lane.scores]
        if lanes:
            legend = [(lane.colour, lane.name) for lane in lanes]
            chart = lanes_chart(lanes, kind, BARS if len(lanes) <= FEW else BARS_OF_MANY)
            figures.append(Figure(f"Clients' tests: {kind}", legend, {kind: chart}))
    return figures


def spread_table(groups: Sequence[Group]) -> Table | None:
    """Return the mean, the worst tenth and the extremes of the clients' newest tests."""
    rows = []
    alone = len(groups) == 1
    for group in groups:
        for kind in dict.fromkeys(kind for run in group.runs for kind in run.kinds):
            found = [scores for run in group.runs if (scores := run.scores(kind)[1])]
            if not found:
                continue
            values = [list(scores.values()) for scores in found]
            cells = [
                accuracy_over_runs([measure(each) for each in values])
                for measure in (fmean, median, min, max)
            ]
            cells.insert(1, accuracy_over_runs([worst_tenth(each) for each in found]))
            worst = _worst_clients(group.runs[0], kind) if alone else ""
            rows.append([*([] if alone else [group.name]), kind, str(len(values[0])), *cells,
                         *([worst] if alone else [])])  # fmt: skip
    if not rows:
        return None
    columns = [*([] if alone else ["settings"]), "test", "clients", "mean", "worst tenth",
               "median", "lowest", "highest", *(["who has least"] if alone else [])]  # fmt: skip
    note = "Worst tenth: the mean of the tenth of the clients whose accuracy is lowest."
    return Table("Spread over clients", columns, rows, [note])


def _worst_clients(run: RunData, kind: str) -> str:
    scores = run.scores(kind)[1]
    clients = run.fleet["clients"] if run.fleet else {}
    lowest = sorted(scores, key=lambda client: (scores[client], int(client)))[:NAMED]
    named = []
    for client in lowest:
        level = f" (level {clients[client]['level']})" if client in clients else ""
        named.append(f"{client}{level} {percent(scores[client])}")
    return listed(named)


def _by_level(run: RunData, kind: str) -> list[Lane]:
    _, scores = run.scores(kind)
    if run.fleet is None:
        return [Lane("all clients", 0, sorted(scores.items()))]
    clients = run.fleet["clients"]
    return [
        Lane(
            f"level {level}",
            number,
            [
                (c, s)
                for c, s in scores.items()
                if c in clients and str(clients[c]["level"]) == level
            ],
        )
        for number, level in enumerate(run.level_facts)
    ]


def _by_group(groups: Sequence[Group], kind: str) -> list[Lane]:
    return [
        Lane(
            group.name,
            number,
            [(client, s) for run in group.runs for client, s in run.scores(kind)[1].items()],
            named=False,
        )
        for number, group in enumerate(groups)
    ]
