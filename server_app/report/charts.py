"""SVG charts: axes with round values, the marks on them, and figures as files of their own.

Colours are variables of the page's style, so that charts follow its light or dark mode. A line
keeps its name, so that the page's script can tell the values under the pointer.

No library draws them: four lines of 60 points with bands are 10 kB and 5 ms here, 30 kB and 70 ms
with matplotlib; Vega is 0.9 MB a page, and evaluates code, which the page's policy forbids.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self

from markupsafe import Markup, escape

from server_app.record.files import make_directory, write_text
from server_app.report.amounts import amount, counted, listed
from server_app.report.style import STYLE

WIDTH, HEIGHT = 400.0, 250.0
LEFT, RIGHT, TOP, BOTTOM = 48.0, 14.0, 10.0, 38.0  # room around the axes
ACROSS, UPWARD = 6, 7  # most ticks; an accuracy's axis is at most seven steps long
COLOURS = 8  # of the page's style; further series have the same ones, with dashes
LABEL, ABOVE = 50, 8  # width of a dot's label, and room for one above the highest dot
LANE = 44.0  # height of a lane of bars
# Of a figure's file: heights of its title and of a line of its legend; widths of marks and letters.
TITLE, LINE, MARK, LETTER = 22, 18, 10, 6.5

Point = tuple[float, float]
Legend = list[tuple[int, str]]
"""Colours and their meanings."""


def tint(colour: int, dashes: bool = False) -> str:
    """Return the style's class for a colour; with `dashes`, a repeated colour is dashed."""
    return f"c{colour % COLOURS}{' dashed' if dashes and colour >= COLOURS else ''}"


def element(
    name: str, style: str = "", text: str = "", *, title: str = "", **attributes: str | float
) -> Markup:
    """Return an SVG element; numbers are rounded to a tenth, and texts are escaped."""
    shown = {"class": style, **attributes} if style else attributes
    written = "".join(
        f' {key.replace("_", "-")}="{escape(value if isinstance(value, str) else _tenth(value))}"'
        for key, value in shown.items()
    )
    told = f"<title>{escape(title)}</title>" if title else ""
    return Markup(f"<{name}{written}>{told}{escape(text)}</{name}>")


def _tenth(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def text(x: float, y: float, written: str, style: str = "tick", anchor: str = "middle") -> Markup:
    """Return a text; the anchor is its start, middle or end."""
    anchored = {} if anchor == "start" else {"text_anchor": anchor}
    return element("text", style, written, **anchored, x=x, y=y)


def stroke(style: str, start: Point, end: Point, title: str = "") -> Markup:
    """Return a straight line."""
    (x, y), (right, down) = start, end
    return element("path", style, title=title, d=f"M{x:.1f} {y:.1f}L{right:.1f} {down:.1f}")


def svg(title: str, marks: Sequence[Markup], height: float = HEIGHT, **data: str | None) -> Markup:
    """Return a drawing with the data that the page's script reads; None leaves one out."""
    known = "".join(
        f' data-{key}="{escape(value)}"' for key, value in data.items() if value is not None
    )
    return Markup(
        f'<svg viewBox="0 0 {WIDTH:g} {height:g}" role="img" aria-label="{escape(title)}"{known}>'
        f"{''.join(marks)}</svg>"
    )


@dataclass(frozen=True)
class Scale:
    """The values of an axis: shares in percent, whole numbers, names, or amounts of a unit."""

    label: str
    kind: Literal["amount", "share", "whole"] = "amount"
    unit: str = ""
    names: Sequence[str] = ()
    """Names of the values 0, 1 and so on."""

    def text(self, value: float) -> str:
        """Return a value as it stands at a tick."""
        if self.names:
            return self.names[int(value)]
        if self.kind == "whole":
            return f"{value:.0f}"
        if self.kind == "share":
            return f"{_tenth(100 * value)} %"
        return amount(value, self.unit)


ACCURACY = Scale("accuracy", "share")
PERPLEXITY = Scale("perplexity")
LOSS = Scale("loss")


@dataclass(frozen=True)
class Axis:
    """Places of values in one direction of a chart."""

    scale: Scale
    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    @classmethod
    def across(cls, values: Sequence[float], scale: Scale, room: float = 0.0) -> Self:
        """Return an axis to the right; with room beside them, logarithmic for distant values."""
        if scale.names:
            return cls(scale, -0.5, len(scale.names) - 0.5, LEFT, WIDTH - RIGHT)
        low, high = min(values, default=0.0), max(values, default=1.0)
        if room and low > 0 and high / low > 20:
            return cls(scale, low / 1.3, high * 1.3, LEFT, WIDTH - RIGHT, logarithmic=True)
        margin = room * ((high - low) or high or 1.0)
        if low == high and not room:
            margin = 0.5
        return cls(scale, low - margin, high + margin, LEFT, WIDTH - RIGHT)

    @classmethod
    def upward(cls, values: Sequence[float], scale: Scale = ACCURACY, top: float = TOP) -> Self:
        """Return an upward axis that begins and ends at a tick; shares end at 100 %."""
        low, high = min(values, default=0.0), max(values, default=1.0)
        share = scale.kind == "share" and high <= 1.0
        least = 0.02 if share else 0.05 * (high or 1.0)
        if low == high:  # a flat line: beside it there is room for half of the least range
            low, high = max(0.0, low - least / 2), high + least / 2
            high = min(1.0, high) if share else high
        step = _round_step(max(high - low, least) / 5)
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        return cls(scale, first * step, max(last, first + 1) * step, HEIGHT - BOTTOM, top)

    def at(self, value: float) -> float:
        """Return the place of a value."""
        low, high, value = map(self._scaled, (self.low, self.high, value))
        return self.start + (value - low) / ((high - low) or 1.0) * (self.end - self.start)

    def _scaled(self, value: float) -> float:
        return math.log10(value) if self.logarithmic else value

    def ticks(self, most: int) -> list[float]:
        """Return round values between the ends: no more than asked for."""
        if self.scale.names:
            return [float(number) for number in range(len(self.scale.names))]
        if self.logarithmic:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            steps = (1, 2, 5) if len(powers) <= 3 else (1,)
            values = [step * 10.0**power for power in powers for step in steps]
            return [value for value in values if self.low <= value <= self.high]
        step = _round_step((self.high - self.low) / most)
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        found = [round(number * step, 12) for number in range(first, last + 1)]
        return [value for value in found if not (self.scale.kind == "whole" and value % 1)]


def _round_step(least: float) -> float:
    if least <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= least * (1 - 1e-9))


def frame(across: Axis, up: Axis, height: float = HEIGHT) -> list[Markup]:
    """Return the axes of a chart: a grid, ticks, and the label of the one to the right."""
    marks, right, bottom = list[Markup](), WIDTH - RIGHT, height - BOTTOM
    for tick in up.ticks(UPWARD):
        y = up.at(tick)
        marks.append(stroke("grid", (LEFT, y), (right, y)))
        marks.append(text(LEFT - 5, y + 4, up.scale.text(tick), anchor="end"))
    for tick in across.ticks(ACROSS):
        style = "small" if across.scale.names else "tick"
        marks.append(text(across.at(tick), bottom + 15, across.scale.text(tick), style))
    marks.append(stroke("axis", (LEFT, bottom), (right, bottom)))
    return [*marks, text((LEFT + right) / 2, height - 5, across.scale.label)]


@dataclass(frozen=True)
class Dot:
    """A place with its description; the range of several runs is a line through it."""

    x: float
    y: float
    text: str
    colour: int
    label: str = ""
    ends: tuple[float, float] = (0.0, 0.0)
    radius: float = 4.0
    hollow: bool = False


@dataclass(frozen=True)
class Series:
    """A line in the style and the colour of that number, with dots and a band around it."""

    name: str
    colour: int
    points: Sequence[Point]
    band: Sequence[tuple[float, float, float]] = ()
    """Places, each with the lowest and the highest value."""
    dots: Sequence[Dot] = ()
    style: str = "series"


def plot(
    title: str, series: Sequence[Series], x: Scale, y: Scale = ACCURACY, *,
    room: float = 0.0, pointed: bool = False,
) -> Markup:  # fmt: skip
    """Draw lines with their dots; if `pointed`, the script shows their values under the pointer."""
    dots = [dot for each in series for dot in each.dots]
    values = [p[1] for each in series for p in each.points]
    values += [end for each in series for _, *ends in each.band for end in ends]
    values += [value for dot in dots for value in (dot.y, *(dot.ends if any(dot.ends) else ()))]
    xs = [p[0] for each in series for p in each.points] + [dot.x for dot in dots]
    across = Axis.across(xs, x, room)
    up = Axis.upward(values, y, TOP + ABOVE * any(dot.label for dot in dots))

    def places(points: Sequence[Point]) -> str:
        return " ".join(f"{across.at(x):.1f},{up.at(y):.1f}" for x, y in points)

    marks = frame(across, up)
    for each in series:
        if each.band:
            around = [(place, high) for place, _, high in each.band]
            around += [(place, low) for place, low, _ in reversed(each.band)]
            marks.append(element("polygon", f"band {tint(each.colour)}", points=places(around)))
    for each in series:
        style = f"{each.style} {tint(each.colour, dashes=True)}"
        marks.append(element("polyline", style, title=each.name, data_name=each.name,
                             points=places(each.points)))  # fmt: skip
        marks += [mark for dot in each.dots for mark in _dot(dot, across, up)]
    marks += [_label(dot, across, up) for dot in dots if dot.label]  # over all lines and dots
    if not pointed:
        return svg(title, marks)
    ends = [(axis.low, axis.high, axis.start, axis.end) for axis in (across, up)]
    return svg(
        title,
        marks,
        axes=" ".join(f"{value:.6g}" for axis in ends for value in axis),
        label=x.label,
        unit=x.unit,
        whole="" if x.kind == "whole" else None,
        plain="" if y.kind != "share" else None,
    )


def _dot(dot: Dot, across: Axis, up: Axis) -> Iterator[Markup]:
    x, y, (low, high) = across.at(dot.x), up.at(dot.y), dot.ends
    if low < high:
        yield stroke(f"range {tint(dot.colour)}", (x, up.at(low)), (x, up.at(high)))
    style = f"dot{' hollow' * dot.hollow} {tint(dot.colour)}"
    yield element("circle", style, title=dot.text, cx=x, cy=y, r=dot.radius)


def _label(dot: Dot, across: Axis, up: Axis) -> Markup:
    """Return a dot's label above it, to the left: beside a front is nothing."""
    x, y = across.at(dot.x), up.at(dot.y) - 7
    if x > LEFT + LABEL:
        return text(x, y, dot.label, "label", "end")
    return text(x - 4, y, dot.label, "label", "start")


def front_of(name: str, colour: int, dots: Sequence[Dot]) -> Series:
    """Return dots of which the best for their cost are filled and joined by steps."""
    best, steps = list[Dot](), list[Point]()
    for dot in sorted(dots, key=lambda dot: (dot.x, -dot.y)):
        if not best or dot.y > best[-1].y:
            steps += [(dot.x, best[-1].y)] if best else []
            steps.append((dot.x, dot.y))
            best.append(dot)
    shown = [replace(dot, hollow=dot not in best) for dot in dots]
    return Series(name, colour, steps, dots=shown, style="front")


@dataclass(frozen=True)
class Lane:
    """Accuracies of some clients, by their numbers, drawn beside those of others."""

    name: str
    colour: int
    scores: Sequence[tuple[str, float]]
    named: bool = True
    """True if a bar names its clients."""

    def bars(self, bins: int) -> dict[int, list[str]]:
        """Return the clients of each bar that has some."""
        filled: dict[int, list[str]] = {}
        for client, score in self.scores:
            filled.setdefault(min(bins - 1, int(score * bins + 1e-9)), []).append(client)
        return dict(sorted(filled.items()))


def lanes_chart(title: str, lanes: Sequence[Lane], bins: int) -> Markup:
    """Draw how many clients have which accuracy, one lane for each level or group."""
    bottom = TOP + LANE * len(lanes)
    across = Axis(ACCURACY, 0.0, 1.0, 10.0, WIDTH - RIGHT)
    marks = []
    for percents in range(0, 101, 20):
        x = across.at(percents / 100)
        marks += [stroke("grid", (x, TOP), (x, bottom)), text(x, bottom + 15, str(percents))]
    most = max(len(clients) for lane in lanes for clients in lane.bars(bins).values())
    wide = across.at(1 / bins) - across.at(0) - 1
    for number, lane in enumerate(lanes):
        top, base = TOP + LANE * number, TOP + LANE * (number + 1)
        marks.append(text(12, top + 14, lane.name, "label", "start"))
        marks.append(stroke("axis", (10, base), (WIDTH - RIGHT, base)))
        for place, clients in lane.bars(bins).items():
            tall, left = max(3.0, (LANE - 18) * len(clients) / most), across.at(place / bins) + 0.5
            who = f"client {listed(clients)}" if lane.named else counted(len(clients), "client")
            told = f"{100 * place / bins:.0f} to {100 * (place + 1) / bins:.0f} %: {who}"
            marks.append(element("rect", f"bar {tint(lane.colour)}", title=told,
                                 x=left, y=base - tall, width=wide, height=tall))  # fmt: skip
        mean = sum(score for _, score in lane.scores) / len(lane.scores)
        ends = (across.at(mean), base + 3), (across.at(mean), top + 18)
        marks.append(stroke("mean", *ends, title=f"mean {100 * mean:.1f} %"))
    height = bottom + BOTTOM
    marks.append(text((LEFT + WIDTH - RIGHT) / 2, height - 5, f"accuracy of a client, % ({title})"))
    return svg(title, marks, height)


@dataclass(frozen=True)
class Stack:
    """A bar of the counts of some rounds, one on the other, and its description."""

    first: int
    last: int
    counts: Mapping[str, int]
    """Counts by class of the page's style."""
    text: str


def stacks_chart(title: str, stacks: Sequence[Stack]) -> Markup:
    """Draw bars of rounds."""
    height, most = 170.0, max(sum(stack.counts.values()) for stack in stacks)
    first, last = stacks[0].first - 0.5, stacks[-1].last + 0.5
    across = Axis(Scale("round", "whole"), first, last, LEFT, WIDTH - RIGHT)
    up = Axis(Scale("clients", "whole"), 0, max(1, most), height - BOTTOM, TOP)
    marks = frame(across, up, height)
    for stack in stacks:
        left, base = across.at(stack.first - 0.5), 0
        wide = across.at(stack.last + 0.5) - left
        for style, count in stack.counts.items():
            top, bottom = up.at(base + count), up.at(base)
            if count:
                marks.append(element("rect", style, title=stack.text, x=left + wide * 0.1, y=top,
                                     width=wide * 0.8, height=bottom - top))  # fmt: skip
            base += count
    return svg(title, marks, height)


@dataclass(frozen=True)
class Figure:
    """A chart under its title; one chart for each axis that it can be drawn over."""

    title: str
    legend: Legend
    charts: Mapping[str, Markup]


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
    rows = [0, *(row for row, _ in _file_legend(figure.legend))]
    found = re.search(r'viewBox="0 0 [\d.]+ ([\d.]+)"', chart)
    top, height = TITLE + LINE * (1 + max(rows)), float(found[1]) if found else HEIGHT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {top + height:g}" '
        f'width="{1.5 * WIDTH:g}" font-family="system-ui, sans-serif">',
        f"<style>{STYLE}</style>",
        element("text", "label", figure.title, x=8, y=15, font_weight="bold"),
        *(mark for _, mark in _file_legend(figure.legend)),
        str(chart).replace("<svg ", f'<svg y="{top}" width="{WIDTH:g}" height="{height:g}" ', 1),
        "</svg>",
    ]
    return "".join(parts)


def _file_legend(legend: Legend) -> Iterator[tuple[int, Markup]]:
    """Yield the marks and names of a legend, each with its line."""
    row, left = 0, 8.0
    for colour, name in legend:
        width = MARK + 18 + LETTER * len(name)
        if left + width > WIDTH and left > 8:
            row, left = row + 1, 8.0
        base = TITLE + LINE * row + 12
        style = f"series {tint(colour, dashes=True)}"
        yield row, stroke(style, (left, base - 4), (left + MARK, base - 4))
        yield row, element("text", "", name, x=left + MARK + 5, y=base)
        left += width
