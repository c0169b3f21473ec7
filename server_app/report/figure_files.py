"""A report's figures as SVG files of their own, for a paper or a page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from markupsafe import Markup, escape

from server_app.record.files import make_directory, write_text
from server_app.report.axes import HEIGHT, WIDTH
from server_app.report.charts import COLOURS
from server_app.report.curves import Figure
from server_app.report.style import STYLE

TITLE, LINE, MARK = 22, 18, 10
"""Heights of the title and of a line of the legend, and the size of its marks."""
LETTER = 6.5
"""The width of a letter of the legend, about."""


def write_figures(figures: Sequence[Figure], folder: Path) -> list[Path]:
    """Write each chart of the figures to a file, which is named after it; return the files."""
    make_directory(folder, exist_ok=True)
    written = []
    for figure in figures:
        for over, chart in figure.charts.items():
            name = re.sub(r"\W+", "-", f"{figure.title} {over}".lower()).strip("-")
            written.append(folder / f"{name}.svg")
            write_text(written[-1], alone(figure, chart) + "\n")
    return written


def alone(figure: Figure, chart: Markup) -> str:
    """Return a chart with its title, its legend and the page's colours as a whole SVG file."""
    legend = list(_legend(figure))
    top = TITLE + LINE * (1 + max((row for row, _ in legend), default=0))
    height = _height(chart)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {top + height:g}" '
        f'width="{1.5 * WIDTH:g}" font-family="system-ui, sans-serif">',
        f"<style>{STYLE}</style>",
        f'<text class="label" x="8" y="15" font-weight="bold">{escape(figure.title)}</text>',
        *(text for _, text in legend),
        str(chart).replace("<svg ", f'<svg y="{top}" width="{WIDTH:g}" height="{height:g}" ', 1),
        "</svg>",
    ]
    return "".join(parts)


def _height(chart: Markup) -> float:
    found = re.search(r'viewBox="0 0 [\d.]+ ([\d.]+)"', chart)
    return float(found[1]) if found else HEIGHT


def _legend(figure: Figure) -> Iterator[tuple[int, str]]:
    """Yield the marks and names of a legend, each with its line."""
    row, left = 0, 8.0
    for colour, name in figure.legend:
        width = MARK + 18 + LETTER * len(name)
        if left + width > WIDTH and left > 8:
            row, left = row + 1, 8.0
        base = TITLE + LINE * row + 12
        style = f"c{colour % COLOURS}{' dashed' if colour >= COLOURS else ''}"
        mark = f"M{left:.1f} {base - 4}h{MARK}"
        yield (
            row,
            (
                f'<path class="series {style}" d="{mark}"/>'
                f'<text x="{left + MARK + 5:.1f}" y="{base}">{escape(name)}</text>'
            ),
        )
        left += width
