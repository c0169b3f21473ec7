"""Charts as SVG text: colours are the page's variables, so that they follow its light or dark mode.

Drawn here rather than by matplotlib: a page of thirty takes milliseconds, and each line knows its
name, so that the page's script can tell the values under the pointer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from markupsafe import Markup, escape

from server_app.report.amounts import amount, listed

WIDTH, HEIGHT = 400.0, 250.0
LEFT, RIGHT, TOP, BOTTOM = 48.0, 14.0, 10.0, 38.0
COLOURS = 8
"""Colours of the page's style; further series have the same ones, with dashes."""

Point = tuple[float, float]
Item = TypeVar("Item")


@dataclass(frozen=True)
class Axis:
    """Where the values of one direction lie on a chart."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def at(self, value: float) -> float:
        """Return the place of a value."""
        low, high, value = map(self._scaled, (self.low, self.high, value))
        return self.start + (value - low) / ((high - low) or 1.0) * (self.end - self.start)

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self.logarithmic else value

    def ticks(self, most: int = 6) -> list[float]:
        """Return round values between the ends: no more than asked for."""
        if self.logarithmic:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            steps = (1, 2, 5) if len(powers) <= 3 else (1,)
            found = [step * 10.0**power for power in powers for step in steps]
            return [value for value in found if self.low <= value <= self.high]
        step = _round_step((self.high - self.low) / most)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(number * step, 12) for number in range(first, last + 1)]


def _round_step(least: float) -> float:
    if least <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= least * (1 - 1e-9))


@dataclass(frozen=True)
class Series:
    """A line: its name, its colour's number, and with several runs the band around it."""

    name: str
    colour: int
    points: Sequence[Point]
    band: Sequence[tuple[float, float, float]] = ()
    """Places, and from where to where."""


@dataclass(frozen=True)
class Scale:
    """What a direction counts: `format` is a name that the page's script knows."""

    label: str
    format: str = "amount"
    unit: str = ""

    def text(self, value: float) -> str:
        if self.format == "percent":
            whole = round(100 * value, 6) % 1 == 0
            return f"{100 * value:.0f} %" if whole else f"{100 * value:.1f} %"
        return amount(value, self.unit)


ACCURACY = Scale("accuracy", "percent")


def line_chart(series: Sequence[Series], x: Scale, title: str) -> Markup:
    """Draw lines of accuracy over something that was spent."""
    points = [point for each in series for point in each.points]
    edges = [value for each in series for _, *ends in each.band for value in ends]
    across = _axis([p[0] for p in points], LEFT, WIDTH - RIGHT)
    up = _accuracy_axis([*(p[1] for p in points), *edges])
    drawn = [_frame(across, up, x, ACCURACY)]
    for each in series:
        if each.band:
            there = [(place, high) for place, _, high in each.band]
            back = [(place, low) for place, low, _ in reversed(each.band)]
            drawn.append(
                f'<polygon class="band c{each.colour % COLOURS}" '
                f'points="{_places((*there, *back), across, up)}"/>'
            )
    for each in series:
        name = escape(each.name)
        dashes = " dashed" if each.colour >= COLOURS else ""
        drawn.append(
            f'<polyline class="series c{each.colour % COLOURS}{dashes}" data-name="{name}" '
            f'points="{_places(each.points, across, up)}"><title>{name}</title></polyline>'
        )
        if len(each.points) <= 2:
            drawn += [_dot(across, up, point, each.colour, each.name) for point in each.points]
    return _svg(title, drawn, across, up, x)


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
    across = _axis([dot.x for dot in dots], LEFT, WIDTH - RIGHT, room=0.06)
    up = _accuracy_axis([*(dot.y for dot in dots), *edges])
    drawn = [_frame(across, up, x, ACCURACY)]
    for front in fronts:
        best, colour = front.best(), front.colour % COLOURS
        steps: list[Point] = []
        for dot in best:
            steps += [(dot.x, steps[-1][1]), (dot.x, dot.y)] if steps else [(dot.x, dot.y)]
        dashes = " dashed" if front.colour >= COLOURS else ""
        places = _places(steps, across, up)
        drawn.append(f'<polyline class="front c{colour}{dashes}" points="{places}"/>')
        for dot in front.dots:
            drawn += _ranged_dot(across, up, dot, dot in best)
    return _svg(title, drawn)


def _ranged_dot(across: Axis, up: Axis, dot: Dot, best: bool) -> Iterable[str]:
    x, colour = across.at(dot.x), dot.colour % COLOURS
    if dot.low is not None and dot.high is not None and dot.high > dot.low:
        low, high = up.at(dot.low), up.at(dot.high)
        yield f'<path class="range c{colour}" d="M{x:.1f} {low:.1f}V{high:.1f}"/>'
    place, radius = (dot.x, dot.y), 2.5 if dot.small else 4.0
    yield _dot(across, up, place, dot.colour, dot.text, hollow=not best, radius=radius)
    if dot.label:
        left = x > WIDTH - 90
        at = f'x="{x - 7 if left else x + 7:.1f}" y="{up.at(dot.y) + 11:.1f}"'
        anchor = ' text-anchor="end"' if left else ""
        yield f'<text class="label" {at}{anchor}>{escape(dot.label)}</text>'


@dataclass(frozen=True)
class Lane:
    """Accuracies of some clients, by their numbers, drawn beside those of others."""

    name: str
    colour: int
    scores: Sequence[tuple[str, float]]
    named: bool = True
    """Whether a bar says who its clients are."""

    def bars(self, bins: int) -> dict[int, list[str]]:
        """Return the clients of each bar that has some."""
        filled: dict[int, list[str]] = {}
        for client, score in self.scores:
            filled.setdefault(min(bins - 1, int(score * bins)), []).append(client)
        return dict(sorted(filled.items()))


def lanes_chart(lanes: Sequence[Lane], title: str, bins: int) -> Markup:
    """Draw how many clients have which accuracy, one lane for each level or group."""
    step = 44.0
    height = TOP + step * len(lanes) + BOTTOM
    across = Axis(0.0, 1.0, 10.0, WIDTH - RIGHT)
    drawn = [
        f'<path class="grid" d="M{across.at(tick):.1f} {TOP:g}V{height - BOTTOM:.1f}"/>'
        f'<text class="tick" text-anchor="middle" x="{across.at(tick):.1f}" '
        f'y="{height - BOTTOM + 15:.1f}">{100 * tick:.0f}</text>'
        for tick in (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    ]
    most = max(len(clients) for lane in lanes for clients in lane.bars(bins).values())
    wide = across.at(1 / bins) - across.at(0)
    for number, lane in enumerate(lanes):
        base = TOP + step * (number + 1)
        name = escape(lane.name)
        drawn.append(f'<text class="label" x="12" y="{base - step + 14:.1f}">{name}</text>')
        drawn.append(f'<path class="axis" d="M10 {base:.1f}H{WIDTH - RIGHT:.1f}"/>')
        for place, clients in lane.bars(bins).items():
            tall, left = max(3.0, (step - 18) * len(clients) / most), across.at(place / bins)
            who = f"client {listed(clients)}" if lane.named else f"{len(clients)} clients"
            told = f"{100 * place / bins:.0f} to {100 * (place + 1) / bins:.0f} %: {who}"
            drawn.append(
                f'<rect class="bar c{lane.colour % COLOURS}" x="{left + 0.5:.1f}" '
                f'y="{base - tall:.1f}" width="{wide - 1:.1f}" height="{tall:.1f}">'
                f"<title>{escape(told)}</title></rect>"
            )
        mean = sum(score for _, score in lane.scores) / len(lane.scores)
        drawn.append(
            f'<path class="mean" d="M{across.at(mean):.1f} {base + 3:.1f}V{base - step + 18:.1f}">'
            f"<title>mean {100 * mean:.1f} %</title></path>"
        )
    drawn.append(_axis_label(f"accuracy of a client, % ({title})", height))
    return _svg(title, drawn, height=height)


@dataclass(frozen=True)
class Stack:
    """A bar of counts, one on the other, and what is said of it."""

    x: int
    counts: Sequence[int]
    text: str


def stacks_chart(stacks: Sequence[Stack], classes: Sequence[str], title: str) -> Markup:
    """Draw a bar for each round; `classes` are the styles of its parts."""
    most = max((sum(stack.counts) for stack in stacks), default=1)
    wide = (WIDTH - LEFT - RIGHT) / max(1, len(stacks))
    height, up = 170.0, Axis(0, max(1, most), 170.0 - BOTTOM, TOP)
    across = Axis(stacks[0].x - 0.5, stacks[-1].x + 0.5, LEFT, WIDTH - RIGHT)
    drawn = [_frame(across, up, Scale("round"), Scale("clients"), height)]
    for stack in stacks:
        left, base = across.at(stack.x) - wide / 2, 0
        for count, style in zip(stack.counts, classes, strict=True):
            if count:
                top, bottom = up.at(base + count), up.at(base)
                drawn.append(
                    f'<rect class="{style}" x="{left + wide * 0.1:.1f}" y="{top:.1f}" '
                    f'width="{wide * 0.8:.1f}" height="{bottom - top:.1f}">'
                    f"<title>{escape(stack.text)}</title></rect>"
                )
                base += count
    return _svg(title, drawn, height=height)


def thinned(points: Sequence[Item], most: int) -> list[Item]:
    """Return so many of the points at most, with the first and the last."""
    if len(points) <= most:
        return list(points)
    last = len(points) - 1
    return [points[round(number * last / (most - 1))] for number in range(most)]


def _axis(values: Sequence[float], start: float, end: float, room: float = 0.0) -> Axis:
    low, high = min(values, default=0.0), max(values, default=1.0)
    if room and low > 0 and high / low > 20:
        return Axis(low / 1.3, high * 1.3, start, end, logarithmic=True)
    margin = room * ((high - low) or high or 1.0)
    if low == high:
        low, high = (low - 0.5, high + 0.5) if not room else (low, high)
    return Axis(low - margin, high + margin, start, end)


def _accuracy_axis(values: Sequence[float]) -> Axis:
    low, high = min(values, default=0.0), max(values, default=1.0)
    step = _round_step(max(high - low, 0.02) / 5)
    return Axis(
        max(0.0, math.floor(low / step) * step),
        min(1.0, math.ceil(high / step - 1e-9) * step) or step,
        HEIGHT - BOTTOM,
        TOP,
    )


def _frame(across: Axis, up: Axis, x: Scale, y: Scale, height: float = HEIGHT) -> str:
    drawn = []
    for tick in up.ticks(5):
        place = up.at(tick)
        drawn.append(f'<path class="grid" d="M{LEFT:g} {place:.1f}H{WIDTH - RIGHT:g}"/>')
        drawn.append(
            f'<text class="tick" text-anchor="end" x="{LEFT - 5:g}" y="{place + 4:.1f}">'
            f"{y.text(tick)}</text>"
        )
    for tick in across.ticks():
        if x.label == "round" and tick % 1:
            continue
        drawn.append(
            f'<text class="tick" text-anchor="middle" x="{across.at(tick):.1f}" '
            f'y="{height - BOTTOM + 15:.1f}">{x.text(tick)}</text>'
        )
    drawn.append(f'<path class="axis" d="M{LEFT:g} {height - BOTTOM:g}H{WIDTH - RIGHT:g}"/>')
    drawn.append(_axis_label(x.label, height))
    return "".join(drawn)


def _axis_label(label: str, height: float) -> str:
    return (
        f'<text class="tick" text-anchor="middle" x="{(LEFT + WIDTH - RIGHT) / 2:g}" '
        f'y="{height - 5:.1f}">{escape(label)}</text>'
    )


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


def _places(points: Iterable[Point], across: Axis, up: Axis) -> str:
    return " ".join(f"{across.at(x):.1f},{up.at(y):.1f}" for x, y in points)


def _svg(
    title: str,
    drawn: Iterable[str],
    across: Axis | None = None,
    up: Axis | None = None,
    x: Scale | None = None,
    height: float = HEIGHT,
) -> Markup:
    """Return the drawing; with axes, the script can tell the values at any place."""
    known = ""
    if across and up and x:
        ends = " ".join(
            f"{value:.6g}"
            for axis in (across, up)
            for value in (axis.low, axis.high, axis.start, axis.end)
        )
        known = f' data-axes="{ends}" data-label="{escape(x.label)}" data-unit="{escape(x.unit)}"'
    return Markup(
        f'<svg viewBox="0 0 {WIDTH:g} {height:g}" role="img" aria-label="{escape(title)}"{known}>'
        f"{''.join(drawn)}</svg>"
    )
