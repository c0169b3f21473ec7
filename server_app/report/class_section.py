"""Answers by class: accuracies, confusion matrices, and the pairs that are confused most often."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from markupsafe import Markup

from server_app.report.amounts import listed, percent
from server_app.report.blocks import Block, Cell, Figures, Table, Text
from server_app.report.charts import RIGHT, TOP, WIDTH, Figure, element, svg, text
from server_app.report.grouping import Group, mean_of
from server_app.report.run_data import RunData
from server_app.report.scores import level_name

MOST_CELLS = 2400  # of the table; of more classes it has those with the least accuracy
MOST_DRAWN = 100  # classes of a matrix: with more, a cell would be smaller than a dot
MOST_CONFUSED = 10  # pairs of classes that are named
EXTREMES = 3  # classes that are named for the lowest and for the highest accuracy
LETTER, LONGEST_NAME = 5.2, 12  # width of a letter of a class's name, and most letters
FOOT = 18.0  # room for the label below the names of the columns
MOST_NAMED = 25  # names beside a matrix; of more classes every second, third... is named
MOST_NUMBERED = 12  # classes up to which the counts stand in the cells
SHADES = 8  # of a cell
NOTE = "Of each class's examples in the server's test set, the share that is answered right"
MATRIX_NOTE = (
    "A row is of the examples of a class, a column of what they were taken for; the stronger, the "
    "larger the share of the row. Wrong answers are drawn stronger than right ones."
)

Counts = Sequence[Sequence[int]]
"""Number of answers, by class and by answer."""


@dataclass(frozen=True)
class ClassTest:
    """A test by class: the numbers of examples, and of the right answers of each level."""

    names: Sequence[str]
    sizes: Sequence[int]
    right: Mapping[str, Sequence[int]]
    """Right answers by level."""
    held: Collection[str]
    """The levels that clients hold."""
    matrices: Mapping[str, Counts]
    """Confusion matrices by level, where they are recorded."""

    @classmethod
    def of(cls, run: RunData) -> Self | None:
        """Return a run's newest test; None if no test counted its classes.

        Matrices of another round are left out, and classes without names are numbered.
        """
        tested = (line for line in reversed(run.counted) if line.get("class_sizes"))
        line = next((line for line in tested if line.get("levels")), None)
        if line is None:
            return None
        sizes, levels, confusion = line["class_sizes"], line["levels"], run.confusion
        number, matrices = len(sizes), dict[str, Counts]()
        right = {name: found for name, level in levels.items()
                 if len(found := level.get("right", ())) == number}  # fmt: skip
        if confusion is not None and confusion["round"] == line["round"]:
            matrices = {name: found for name, found in confusion["levels"].items()
                        if list(map(len, found)) == [number] * number}  # fmt: skip
        held = [name for name in right if "lack" not in levels[name]]
        names = run.fleet.get("classes", []) if run.fleet else []
        known = list(names) if len(names) == number else list(map(str, range(number)))
        return cls(known, sizes, right, held, matrices) if right else None

    @classmethod
    def of_group(cls, group: Group) -> Self | None:
        """Return the sums over the runs that have the same classes and levels as the first."""
        known = [test for test in map(cls.of, group.runs) if test is not None]
        if not known:
            return None
        first = known[0]
        return sum((each for each in known[1:] if first.is_like(each)), first)

    def share(self, level: str) -> list[float | None]:
        """Return a level's accuracy for each class; None where there was no example of it."""
        counts = zip(self.right[level], self.sizes, strict=True)
        return [count / size if size else None for count, size in counts]

    def means(self) -> list[float | None]:
        """Return the mean accuracy of the levels that clients hold, or else of all, by class."""
        levels = [level for level in self.right if level in self.held] or list(self.right)
        return [mean_of(shares) for shares in zip(*map(self.share, levels), strict=True)]

    def is_like(self, other: ClassTest) -> bool:
        """Return whether both are of the same classes, levels and matrices."""
        mine, others = (
            (test.names, list(test.right), list(test.matrices)) for test in (self, other)
        )
        return mine == others

    def __add__(self, other: Self) -> Self:
        """Return the sums of two tests that are alike."""
        return replace(
            self,
            sizes=_sums(self.sizes, other.sizes),
            right={name: _sums(own, other.right[name]) for name, own in self.right.items()},
            matrices={
                name: [_sums(*rows) for rows in zip(own, other.matrices[name], strict=True)]
                for name, own in self.matrices.items()
            },
        )


def _sums(one: Sequence[int], other: Sequence[int]) -> list[int]:
    return [a + b for a, b in zip(one, other, strict=True)]


def class_blocks(groups: Sequence[Group]) -> list[Block]:
    """Return the classes of one group's levels, or of several groups; empty without counts.

    Groups whose tests have other classes than the first's are left out.
    """
    tests = {group.name: test for group in groups if (test := ClassTest.of_group(group))}
    if not tests:
        return []
    first = next(iter(tests.values()))
    of_groups = {name: test.means() for name, test in tests.items() if test.names == first.names}
    columns, note = of_groups, f"{NOTE}: the mean over the levels that clients hold."
    matrices: Mapping[str, Counts] = {}
    if len(groups) == 1:
        columns = {
            f"level {level_name(level, groups[0])}": first.share(level) for level in first.right
        }
        note, matrices = f"{NOTE}.", first.matrices
    means = [mean_of(shares) for shares in zip(*of_groups.values(), strict=True)]
    blocks: list[Block] = []
    if told := _extremes(first.names, means):
        blocks.append(Text(told))
    blocks.append(_table(first, columns, means, note))
    figures = [
        Figure(title := f"Confusion matrix of level {level}", [],
               {"classes": matrix_chart(title, counts, first.names)})
        for level, counts in matrices.items() if len(counts) <= MOST_DRAWN
    ]  # fmt: skip
    return [*blocks, *([Figures(figures, [MATRIX_NOTE])] if figures else []),
            *_confused(matrices, first.names)]  # fmt: skip


def _by_accuracy(means: Sequence[float | None]) -> list[int]:
    """Return the places of the classes that were tested, those with the least accuracy first."""
    return [place for _, place in sorted((m, n) for n, m in enumerate(means) if m is not None)]


def _extremes(names: Sequence[str], means: Sequence[float | None]) -> str:
    ordered = _by_accuracy(means)
    if len(ordered) < 2:
        return ""
    few = min(EXTREMES, len(ordered) // 2)
    low, high = (listed([f"{names[n]} ({percent(means[n])})" for n in end])
                 for end in (ordered[:few], ordered[: -few - 1 : -1]))  # fmt: skip
    return f"Lowest on average: {low}. Highest: {high}."


def _table(
    test: ClassTest,
    columns: Mapping[str, Sequence[float | None]],
    means: Sequence[float | None],
    note: str,
) -> Table:
    most, shown = max(1, MOST_CELLS // len(columns)), list(range(len(test.names)))
    if len(shown) > most:
        note += f" Shown are the {most} classes of {len(shown)} with the least accuracy."
        shown = _by_accuracy(means)[:most]
    rows = [
        [test.names[place], str(test.sizes[place]),
         *(Cell.share(percent(shares[place]), shares[place] or 0, number)
           for number, shares in enumerate(columns.values()))]
        for place in shown
    ]  # fmt: skip
    return Table("", ["class", "examples", *columns], rows, [note], "parts")


def _confused(matrices: Mapping[str, Counts], names: Sequence[str]) -> list[Table]:
    """Return the pairs of classes that the levels together take most often for each other."""
    pairs: dict[tuple[int, int], int] = {}
    for counts in matrices.values():
        for row, line in enumerate(counts):
            for column, count in enumerate(line):
                if count and row != column:
                    pairs[row, column] = pairs.get((row, column), 0) + count
    rows = [
        {"class": names[row], "taken for": names[column],
         **{f"level {level}": percent(counts[row][column] / (sum(counts[row]) or 1))
            for level, counts in matrices.items()}}
        for row, column in sorted(pairs, key=lambda pair: (-pairs[pair], pair))[:MOST_CONFUSED]
    ]  # fmt: skip
    notes = ["Of the class's examples. The pairs that are most frequent over all levels."]
    return Table.of(rows, "Most often confused", notes)


def matrix_chart(title: str, counts: Counts, names: Sequence[str]) -> Markup:
    """Draw a confusion matrix: a row for each class, a column for each answer."""
    margin = 14 + LETTER * min(LONGEST_NAME, max(map(len, names)))  # for names, left and below
    side = WIDTH - margin - RIGHT
    cell, height = side / len(names), TOP + side + margin + FOOT
    marks = _cells(counts, margin, cell)
    for place in range(0, len(names), math.ceil(len(names) / MOST_NAMED)):
        name, middle = names[place], (place + 0.5) * cell
        shown = name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
        marks.append(text(margin - 5, TOP + middle + 3, shown, "small", "end"))
        turned = f"translate({margin + middle + 3:.1f} {TOP + side + 5:.1f}) rotate(-90)"
        marks.append(element("text", "small", shown, text_anchor="end", transform=turned))
    corners = f"M{margin:g} {TOP:g}h{side:g}v{side:g}h{-side:g}z"
    marks.append(element("path", "axis", d=corners))
    if len(names) <= MOST_NUMBERED:
        marks += [
            text(margin + (x + 0.5) * cell, TOP + (y + 0.5) * cell + 3, str(count), "label small")
            for y, line in enumerate(counts) for x, count in enumerate(line) if count
        ]  # fmt: skip
    marks.append(text(margin + side / 2, height - 4, "taken for", "small"))
    rows = ";".join(",".join(str(count or "") for count in row) for row in counts)
    place_of = f"{margin:g} {TOP:g} {side:g}"
    return svg(title, marks, height, matrix=rows, names=json.dumps(list(names)), place=place_of)


def _cells(counts: Counts, margin: float, cell: float) -> list[Markup]:
    """Draw the cells that have something in them, those of a shade as one path.

    Wrong answers are drawn stronger than right ones, beside which they would hardly be seen.
    """
    paths: dict[tuple[str, int], str] = {}
    for row, line in enumerate(counts):
        for column, count in enumerate(line):
            if count:
                share = count / sum(line)
                kind, strength = ("right", share) if row == column else ("wrong", share**0.5)
                # A line that is as wide as a cell is the cell.
                x, y = margin + column * cell, TOP + (row + 0.5) * cell
                drawn, shade = f"M{x:.1f} {y:.1f}h{cell:.3g}", math.ceil(SHADES * strength)
                paths[kind, shade] = paths.get((kind, shade), "") + drawn
    return [
        element(
            "path", kind, stroke_width=f"{cell:.4g}", opacity=f"{0.9 * shade / SHADES:.3g}", d=path
        )
        for (kind, shade), path in sorted(paths.items())
    ]
