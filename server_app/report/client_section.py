"""How accuracy is spread over the clients, and who has least of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median

from server_app.report.amounts import listed, percent
from server_app.report.bars import Lane, lanes_chart
from server_app.report.curves import FEW, Figure
from server_app.report.grouping import ABSENT, Group
from server_app.report.run_data import RunData, by_number
from server_app.report.tables import Table, accuracy_over_runs
from strategies.evaluation import worst_tenth

NAMED = 5
MOST_LISTED = 100
"""Clients of the table; of more it has those with the least accuracy."""
BARS, BARS_OF_MANY = 50, 25
"""Bars of a lane, and where there are more than a few lanes."""


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
            cells.insert(1, accuracy_over_runs([worst_tenth(each) for each in values]))
            worst = _worst_clients(group.runs[0], kind) if alone else ""
            rows.append([*([] if alone else [group.name]), kind, _tested(group, kind), *cells,
                         *([worst] if alone else [])])  # fmt: skip
    if not rows:
        return None
    columns = [*([] if alone else ["settings"]), "test", "clients", "mean", "worst tenth",
               "median", "lowest", "highest", *(["who has least"] if alone else [])]  # fmt: skip
    note = "Worst tenth: the mean of the tenth of the clients whose accuracy is lowest."
    return Table("Spread over clients", columns, rows, [note])


def _tested(group: Group, kind: str) -> str:
    """Return how many clients a test is of, and of how many, where that is not all."""
    run = next(run for run in group.runs if run.scores(kind)[1])
    tested, fleet = len(run.scores(kind)[1]), len(run.fleet["clients"]) if run.fleet else 0
    return f"{tested} of {fleet}" if tested < fleet else str(tested)


def clients_table(groups: Sequence[Group]) -> Table | None:
    """Return each client's accuracy in its newest tests, of a single run; the lowest come first.

    They are sorted by the first kind of test.
    """
    (run, *others) = [run for group in groups for run in group.runs]
    by_kind = {kind: run.scores(kind)[1] for kind in run.kinds}
    by_kind = {kind: scores for kind, scores in by_kind.items() if scores}
    if others or not by_kind:
        return None
    clients = run.fleet["clients"] if run.fleet else {}
    first, *_ = by_kind.values()
    tested = sorted({client for scores in by_kind.values() for client in scores}, key=by_number)
    tested.sort(key=lambda client: first.get(client, math.inf))
    rows = []
    for client in tested[:MOST_LISTED]:
        facts = clients.get(client)
        known = [str(facts["level"]), str(facts["examples"])] if facts else [ABSENT, ABSENT]
        trained = str(run.trained_rounds.get(client, 0))
        rows.append([client, *known, trained,
                     *(percent(scores.get(client)) for scores in by_kind.values())])  # fmt: skip
    cut = [f"The {MOST_LISTED} of {len(tested)} clients whose accuracy is lowest."]
    columns = ["client", "level", "examples", "rounds trained", *by_kind]
    return Table("Each client", columns, rows, cut if len(tested) > MOST_LISTED else [])


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
