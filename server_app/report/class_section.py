"""How good a run is at each class, and which classes it takes for which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from server_app.report.amounts import listed, percent
from server_app.report.curves import Figure
from server_app.report.grouping import Group
from server_app.report.matrix import matrix_chart
from server_app.report.tables import Table
from server_app.report.tested_classes import ClassTest, Counts

MOST_CELLS = 2400
"""Of the table; of more classes it has those with the least accuracy."""
MOST_DRAWN = 100
"""Classes of a matrix that is drawn: of more, a cell would be smaller than a dot."""
MOST_CONFUSED = 10
"""Pairs of classes that are named."""
EXTREMES = 3
"""Classes that are named for how low or high their accuracy is."""
NOTE = "Of each class's examples in the server's test set, the share that is answered right"


@dataclass(frozen=True)
class ClassRow:
    """A class: its examples in the test, and the share of these that each column gets right."""

    name: str
    examples: int
    shares: Sequence[float | None]
    mean: float | None
    """Over the levels that clients hold, and over the groups; None of a class without examples."""


@dataclass(frozen=True)
class ClassSection:
    """What a report tells of classes."""

    columns: Sequence[str]
    rows: Sequence[ClassRow]
    sentence: str
    note: str
    matrices: Sequence[Figure]
    confused: Table | None


def class_section(groups: Sequence[Group]) -> ClassSection | None:
    """Return the classes of one group's levels, or of several groups; None where none were told.

    Groups whose tests have other classes than the first's are left out.
    """
    tests = {group.name: _added([run.class_test for run in group.runs]) for group in groups}
    known = {name: test for name, test in tests.items() if test is not None}
    if not known:
        return None
    first = next(iter(known.values()))
    known = {name: test for name, test in known.items() if test.names == first.names}
    of_groups = {name: test.means() for name, test in known.items()}
    columns, note = of_groups, f"{NOTE}: the mean over the levels that clients hold."
    if len(groups) == 1:
        columns = {_level_name(level, groups[0]): first.share(level) for level in first.right}
        note = f"{NOTE}."
    rows = [
        ClassRow(name, size, [shares[place] for shares in columns.values()],
                 groups[0].mean([means[place] for means in of_groups.values()]))
        for place, (name, size) in enumerate(zip(first.names, first.sizes, strict=True))
    ]  # fmt: skip
    most = max(1, MOST_CELLS // len(columns))
    cut = f" Shown are the {most} classes of {len(rows)} with the least accuracy."
    matrices = first.matrices if len(groups) == 1 else {}
    return ClassSection(
        columns=list(columns),
        rows=rows if len(rows) <= most else _by_accuracy(rows)[:most],
        sentence=_sentence(rows),
        note=note if len(rows) <= most else note + cut,
        matrices=_figures(matrices, first.names),
        confused=_confused(matrices, first.names),
    )


def _added(tests: Sequence[ClassTest | None]) -> ClassTest | None:
    """Return the tests of several runs as one, of those that have the same classes and levels."""
    known = [test for test in tests if test is not None]
    alike = [each for each in known if each.alike(known[0])]
    return sum(alike[1:], alike[0]) if alike else None


def _level_name(level: str, group: Group) -> str:
    lack = group.runs[0].summary["levels"].get(level, {}).get("lack")
    return f"level {level} ({lack})" if lack else f"level {level}"


def _by_accuracy(rows: Sequence[ClassRow]) -> list[ClassRow]:
    """Return the classes that were tested, those with the least accuracy first."""
    tested = [(row.mean, place, row) for place, row in enumerate(rows) if row.mean is not None]
    return [row for _, _, row in sorted(tested, key=lambda each: each[:2])]


def _sentence(rows: Sequence[ClassRow]) -> str:
    ordered = _by_accuracy(rows)
    if len(ordered) < 2:
        return ""
    few = min(EXTREMES, len(ordered) // 2)
    ends = (ordered[:few], ordered[: -few - 1 : -1])
    low, high = (listed([f"{row.name} ({percent(row.mean)})" for row in end]) for end in ends)
    return f"Lowest on average: {low}. Highest: {high}."


def _figures(matrices: Mapping[str, Counts], names: Sequence[str]) -> list[Figure]:
    titles = {level: f"Confusion matrix of level {level}" for level in matrices}
    return [
        Figure(titles[level], [], {"classes": matrix_chart(counts, names, titles[level])})
        for level, counts in matrices.items()
        if len(counts) <= MOST_DRAWN
    ]


def _confused(matrices: Mapping[str, Counts], names: Sequence[str]) -> Table | None:
    """Return the pairs of classes that the levels together take most often for each other."""
    pairs: dict[tuple[int, int], int] = {}
    for counts in matrices.values():
        for row, line in enumerate(counts):
            for column, count in enumerate(line):
                if count and row != column:
                    pairs[row, column] = pairs.get((row, column), 0) + count
    often = sorted(pairs, key=lambda pair: (-pairs[pair], pair))[:MOST_CONFUSED]
    if not often:
        return None
    rows = [
        [names[row], names[column],
         *(percent(counts[row][column] / (sum(counts[row]) or 1)) for counts in matrices.values())]
        for row, column in often
    ]  # fmt: skip
    columns = ["class", "taken for", *(f"level {level}" for level in matrices)]
    notes = ["Of the class's examples. The pairs that are most frequent over all levels."]
    return Table("Most often confused", columns, rows, notes)
