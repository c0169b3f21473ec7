"""Accuracy under serving settings: a table with a row for each variant, and a chart of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from server_app.record.serving_settings import Cell, best_of, sorted_settings
from server_app.report.axes import (
    ACCURACY,
    LEFT,
    RIGHT,
    WIDTH,
    Axis,
    Scale,
    frame,
    svg_of,
    upward_axis,
)
from server_app.report.charts import COLOURS
from server_app.report.curves import Figure
from server_app.report.grouping import ABSENT
from server_app.report.tables import Table

TITLE = "Accuracy of the system by serving setting"
ASIDE = 3.0
"""How far dots of the same setting are from each other."""


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
    return Table(f"{TITLE}, in percent", columns, rows, _notes(variants))


def _notes(variants: Sequence[Variant]) -> list[str]:
    notes = [
        "Share of the test samples that the system answers right where exits 1, 2 and so on answer "
        "as many percent of them."
    ]
    several = len(variants) > 1
    if any(cell.own for variant in variants for cell in variant.cells.values()):
        cells = " Other runs of a row are not in such a column." if several else ""
        notes.append(f"Own: what runs were trained for (fleet.serving).{cells}")
    if several:
        notes.append(
            "*: the best of a column without gaps. A gap: a row's runs were trained for several "
            "settings, but none for this one."
        )
    return notes


def settings_figure(variants: Sequence[Variant]) -> Figure | None:
    """Return the same as a chart with a line for each; None where there is no table."""
    settings = settings_of(variants)
    if len(settings) < 2:
        return None
    drawn = [(n, variant) for n, variant in enumerate(variants) if variant.cells]
    legend = [(number, variant.name) for number, variant in drawn]
    return Figure(TITLE, legend, {"settings": _chart(drawn, settings)})


@dataclass(frozen=True)
class _Names(Scale):
    """A direction along which there are names."""

    names: Sequence[str] = ()

    def text(self, value: float) -> str:
        return str(escape(self.names[int(value)]))

    def ticks(self, axis: Axis, most: int) -> list[float]:
        return [float(place) for place in range(len(self.names))]


def _chart(variants: Sequence[tuple[int, Variant]], settings: Sequence[str]) -> Markup:
    across = Axis(-0.5, len(settings) - 0.5, LEFT, WIDTH - RIGHT)
    cells = [cell for _, variant in variants for cell in variant.cells.values()]
    spreads = [(cell.mean, cell.deviation or 0.0) for cell in cells]
    up = upward_axis([mean + side * off for mean, off in spreads for side in (-1, 1)])
    names = _Names("percent of the requests that exits 1, 2, ... answer", names=settings)
    drawn = [f'<g class="small">{frame(across, up, names, ACCURACY)}</g>']
    for place, (colour, variant) in enumerate(variants):
        aside = ASIDE * (place - (len(variants) - 1) / 2)
        dots = [
            (across.at(settings.index(setting)) + aside, setting, cell)
            for setting, cell in sorted(
                variant.cells.items(), key=lambda item: settings.index(item[0])
            )
        ]
        drawn += _line(variant.name, colour, [(x, up.at(cell.mean)) for x, _, cell in dots])
        for x, setting, cell in dots:
            drawn += _dot(x, up, colour, cell, f"{variant.name}, {setting}: {cell.percents} %")
    return svg_of(TITLE, drawn)


def _line(name: str, colour: int, places: Sequence[tuple[float, float]]) -> Iterator[str]:
    dashes = " dashed" if colour >= COLOURS else ""
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    yield (
        f'<polyline class="series c{colour % COLOURS}{dashes}" data-name="{escape(name)}" '
        f'points="{points}"/>'
    )


def _dot(x: float, up: Axis, colour: int, cell: Cell, text: str) -> Iterator[str]:
    """Draw a cell: filled where its runs were trained for it, with its deviation up and down."""
    if cell.deviation:
        low, high = up.at(cell.mean - cell.deviation), up.at(cell.mean + cell.deviation)
        path = f"M{x:.1f} {low:.1f}V{high:.1f}"
        yield f'<path class="range c{colour % COLOURS}" d="{path}"/>'
    style = "dot" if cell.own else "dot hollow"
    told = f"{text}{', trained for it' if cell.own else ''}"
    yield (
        f'<circle class="{style} c{colour % COLOURS}" cx="{x:.1f}" cy="{up.at(cell.mean):.1f}" '
        f'r="3"><title>{escape(told)}</title></circle>'
    )
