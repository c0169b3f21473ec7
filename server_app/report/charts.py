"""Charts as SVG text: colours are the page's variables, so that they follow its light or dark mode.

Drawn here rather than by matplotlib: a page of thirty takes milliseconds, and each line knows its
name, so that the page's script can tell the values under the pointer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from markupsafe import Markup, escape

from server_app.report.axes import (
    ACCURACY,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Axis,
    Point,
    Scale,
    axis_of,
    frame,
    places,
    svg_of,
    upward_axis,
)

COLOURS = 8
"""Colours of the page's style; further series have the same ones, with dashes."""

LABEL, ABOVE = 50, 8
"""The width of a dot's label, and the room for one above the highest dot."""

Item = TypeVar("Item")


@dataclass(frozen=True)
class Series:
    """A line: its name, its colour's number, and with several runs the band around it."""

    name: str
    colour: int
    points: Sequence[Point]
    band: Sequence[tuple[float, float, float]] = ()
    """Places, and from where to where."""


def line_chart(series: Sequence[Series], x: Scale, title: str, y: Scale = ACCURACY) -> Markup:
    """Draw lines of accuracy, or of another score, over something that was spent."""
    points = [point for each in series for point in each.points]
    edges = [value for each in series for _, *ends in each.band for value in ends]
    across = axis_of([p[0] for p in points], LEFT, WIDTH - RIGHT)
    up = upward_axis([*(p[1] for p in points), *edges], y)
    drawn = [frame(across, up, x, y)]
    for each in series:
        if each.band:
            there = [(place, high) for place, _, high in each.band]
            back = [(place, low) for place, low, _ in reversed(each.band)]
            drawn.append(
                f'<polygon class="band c{each.colour % COLOURS}" '
                f'points="{places((*there, *back), across, up)}"/>'
            )
    for each in series:
        name = escape(each.name)
        dashes = " dashed" if each.colour >= COLOURS else ""
        drawn.append(
            f'<polyline class="series c{each.colour % COLOURS}{dashes}" data-name="{name}" '
            f'points="{places(each.points, across, up)}"><title>{name}</title></polyline>'
        )
        if len(each.points) <= 2:
            drawn += [_dot(across, up, point, each.colour, each.name) for point in each.points]
    return svg_of(title, drawn, across, up, x, y)


@dataclass(frozen=True)
class Dot:
    """A place with what is said of it; the range of several runs as a line through it."""

    x: float
    y: float
    colour: int
    text: str
    label: str = ""
    low: float | None = None
    high: float | None = None
    small: bool = False


@dataclass(frozen=True)
class Front:
    """Places of which the best for their cost are joined, in the front's own colour."""

    name: str
    colour: int
    dots: Sequence[Dot] = field(default_factory=tuple)

    def best(self) -> list[Dot]:
        """Return the dots that no cheaper one reaches."""
        found: list[Dot] = []
        for dot in sorted(self.dots, key=lambda dot: (dot.x, -dot.y)):
            if not found or dot.y > found[-1].y:
                found.append(dot)
        return found


def front_chart(fronts: Sequence[Front], x: Scale, title: str) -> Markup:
    """Draw accuracy against cost, with the front of each colour as steps."""
    dots = [dot for front in fronts for dot in front.dots]
    edges = [end for dot in dots for end in (dot.low, dot.high) if end is not None]
    across = axis_of([dot.x for dot in dots], LEFT, WIDTH - RIGHT, room=0.06)
    top = TOP + ABOVE * any(dot.label for dot in dots)
    up = upward_axis([*(dot.y for dot in dots), *edges], top=top)
    drawn = [frame(across, up, x, ACCURACY)]
    for front in fronts:
        best, colour = front.best(), front.colour % COLOURS
        steps: list[Point] = []
        for dot in best:
            steps += [(dot.x, steps[-1][1]), (dot.x, dot.y)] if steps else [(dot.x, dot.y)]
        dashes = " dashed" if front.colour >= COLOURS else ""
        line = places(steps, across, up)
        drawn.append(f'<polyline class="front c{colour}{dashes}" points="{line}"/>')
        for dot in front.dots:
            drawn += _ranged_dot(across, up, dot, dot in best)
    drawn += [_label(across, up, dot) for dot in dots if dot.label]  # over all lines and dots
    return svg_of(title, drawn)


def _ranged_dot(across: Axis, up: Axis, dot: Dot, best: bool) -> Iterable[str]:
    x, colour = across.at(dot.x), dot.colour % COLOURS
    if dot.low is not None and dot.high is not None and dot.high > dot.low:
        low, high = up.at(dot.low), up.at(dot.high)
        yield f'<path class="range c{colour}" d="M{x:.1f} {low:.1f}V{high:.1f}"/>'
    place, radius = (dot.x, dot.y), 2.5 if dot.small else 4.0
    yield _dot(across, up, place, dot.colour, dot.text, hollow=not best, radius=radius)


def _label(across: Axis, up: Axis, dot: Dot) -> str:
    """Draw a dot's label above it, to the left: beside a front nothing is there."""
    x, y = across.at(dot.x), up.at(dot.y) - 7
    left = x > LEFT + LABEL
    at = f'x="{x if left else x - 4:.1f}" y="{y:.1f}"'
    anchor = ' text-anchor="end"' if left else ""
    return f'<text class="label" {at}{anchor}>{escape(dot.label)}</text>'


def thinned(points: Sequence[Item], most: int) -> list[Item]:
    """Return so many of the points at most, with the first and the last."""
    if len(points) <= most:
        return list(points)
    last = len(points) - 1
    return [points[round(number * last / (most - 1))] for number in range(most)]


def _dot(
    across: Axis,
    up: Axis,
    point: Point,
    colour: int,
    text: str,
    hollow: bool = False,
    radius: float = 4.0,
) -> str:
    style = " hollow" if hollow else ""
    return (
        f'<circle class="dot{style} c{colour % COLOURS}" cx="{across.at(point[0]):.1f}" '
        f'cy="{up.at(point[1]):.1f}" r="{radius:g}"><title>{escape(text)}</title></circle>'
    )
