"""A confusion matrix as a chart: what class examples are of, and for which they were taken."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from server_app.report.axes import RIGHT, TOP, WIDTH, svg_of
from server_app.report.tested_classes import Counts

LETTER, LONGEST_NAME = 5.2, 12
"""The width of a letter of a class's name, about, and how many of them there is room for."""
FOOT = 18.0
"""Room for what the columns are, below their names."""
MOST_NAMED = 25
"""Names beside a matrix; of more classes every second, third... is named."""
MOST_NUMBERED = 12
"""Classes up to which the counts stand in the cells."""
SHADES = 8


@dataclass(frozen=True)
class Grid:
    """Where the cells are: as many rows and columns as there are classes."""

    names: Sequence[str]

    @property
    def margin(self) -> float:
        """The room for names, to the left and below."""
        return 14 + LETTER * min(LONGEST_NAME, max(map(len, self.names)))

    @property
    def side(self) -> float:
        return WIDTH - self.margin - RIGHT

    @property
    def cell(self) -> float:
        return self.side / len(self.names)

    def at(self, row: float, column: float) -> tuple[float, float]:
        """Return the place of a cell's corner, or with halves of its middle."""
        return self.margin + column * self.cell, TOP + row * self.cell


def matrix_chart(counts: Counts, names: Sequence[str], title: str) -> Markup:
    """Draw the share of each class's examples that got which answer.

    Cells of a shade are one path, so that a hundred classes do not make a large page; the script
    tells the numbers of the cell under the pointer.
    """
    grid = Grid(names)
    left, side, height = grid.margin, grid.side, TOP + grid.side + grid.margin + FOOT
    drawn = [*_cells(counts, grid), *_names(grid)]
    drawn.append(f'<path class="axis" d="M{left:g} {TOP:g}h{side:g}v{side:g}h{-side:g}z"/>')
    if len(counts) <= MOST_NUMBERED:
        drawn += _numbers(counts, grid)
    drawn.append(
        f'<text class="small" text-anchor="middle" x="{left + side / 2:g}" '
        f'y="{height - 4:g}">taken for</text>'
    )
    rows = ";".join(",".join(str(count or "") for count in row) for row in counts)
    data = (
        f' data-matrix="{rows}" data-names="{escape(json.dumps(list(names)))}" '
        f'data-place="{left:g} {TOP:g} {side:g}"'
    )
    return svg_of(title, drawn, height=height, data=data)


def _cells(counts: Counts, grid: Grid) -> list[str]:
    """Draw the cells that have something in them.

    Wrong answers are drawn stronger than right ones, beside which they would hardly be seen.
    """
    paths: dict[tuple[str, int], list[str]] = {}
    for row, line in enumerate(counts):
        for column, count in enumerate(line):
            if count:
                share = count / sum(line)
                kind, strength = ("right", share) if row == column else ("wrong", share**0.5)
                x, y = grid.at(row + 0.5, column)  # a line as wide as a cell is the cell
                line_across = f"M{x:.1f} {y:.1f}h{grid.cell:.3g}"
                paths.setdefault((kind, math.ceil(SHADES * strength)), []).append(line_across)
    return [
        f'<path class="{kind}" stroke-width="{grid.cell:.4g}" '
        f'opacity="{0.9 * shade / SHADES:.3g}" d="{"".join(lines)}"/>'
        for (kind, shade), lines in sorted(paths.items())
    ]


def _numbers(counts: Counts, grid: Grid) -> list[str]:
    drawn = []
    for row, line in enumerate(counts):
        for column, count in enumerate(line):
            x, y = grid.at(row + 0.5, column + 0.5)
            if count:
                drawn.append(
                    f'<text class="label small" text-anchor="middle" x="{x:.1f}" y="{y + 3:.1f}">'
                    f"{count}</text>"
                )
    return drawn


def _names(grid: Grid) -> list[str]:
    drawn = []
    for place in range(0, len(grid.names), math.ceil(len(grid.names) / MOST_NAMED)):
        name = grid.names[place]
        shown = escape(name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…")
        (x, y), below = grid.at(place + 0.5, place + 0.5), TOP + grid.side + 5
        drawn.append(
            f'<text class="small" text-anchor="end" x="{grid.margin - 5:.1f}" y="{y + 3:.1f}">'
            f'{shown}</text><text class="small" text-anchor="end" '
            f'transform="translate({x + 3:.1f} {below:.1f}) rotate(-90)">{shown}</text>'
        )
    return drawn
