"""What charts are drawn on: axes with round values, the frame around them, and the SVG itself."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from server_app.report.amounts import amount

WIDTH, HEIGHT = 400.0, 250.0
LEFT, RIGHT, TOP, BOTTOM = 48.0, 14.0, 10.0, 38.0
ACROSS, UPWARD = 6, 7
"""Ticks at most; an accuracy's axis is seven steps long at most."""

Point = tuple[float, float]


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

    def ticks(self, most: int) -> list[float]:
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
class Scale:
    """What a direction counts; `whole` if there is nothing between its numbers."""

    label: str
    format: str = "amount"
    unit: str = ""
    whole: bool = False

    def text(self, value: float) -> str:
        """Return a value as it stands at a tick."""
        if self.whole:
            return f"{value:.0f}"
        if self.format == "percent":
            whole = round(100 * value, 6) % 1 == 0
            return f"{100 * value:.0f} %" if whole else f"{100 * value:.1f} %"
        return amount(value, self.unit)

    def ticks(self, axis: Axis, most: int) -> list[float]:
        """Return an axis' round values, as far as this counts them."""
        return [tick for tick in axis.ticks(most) if not (self.whole and tick % 1)]


ACCURACY = Scale("accuracy", "percent")
PERPLEXITY = Scale("perplexity")
LOSS = Scale("loss")


def axis_of(values: Sequence[float], start: float, end: float, room: float = 0.0) -> Axis:
    """Return an axis for values; with `room` beside them, logarithmic if they are far apart."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if room and low > 0 and high / low > 20:
        return Axis(low / 1.3, high * 1.3, start, end, logarithmic=True)
    margin = room * ((high - low) or high or 1.0)
    if low == high:
        low, high = (low - 0.5, high + 0.5) if not room else (low, high)
    return Axis(low - margin, high + margin, start, end)


def upward_axis(values: Sequence[float], scale: Scale = ACCURACY, top: float = TOP) -> Axis:
    """Return an upward axis that begins and ends at a tick; shares end at 100 %."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    share = scale.format == "percent" and high <= 1.0
    least = 0.02 if share else 0.05 * (high or 1.0)
    if low == high:  # a flat line: beside it there is room for half of the least range
        low, high = max(0.0, low - least / 2), high + least / 2
        high = min(1.0, high) if share else high
    step = _round_step(max(high - low, least) / 5)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return Axis(first * step, max(last, first + 1) * step, HEIGHT - BOTTOM, top)


def frame(across: Axis, up: Axis, x: Scale, y: Scale, height: float = HEIGHT) -> str:
    """Draw what surrounds a chart: a grid, ticks, and what is counted to the right."""
    drawn = []
    for tick in y.ticks(up, UPWARD):
        place = up.at(tick)
        drawn.append(f'<path class="grid" d="M{LEFT:g} {place:.1f}H{WIDTH - RIGHT:g}"/>')
        drawn.append(
            f'<text class="tick" text-anchor="end" x="{LEFT - 5:g}" y="{place + 4:.1f}">'
            f"{y.text(tick)}</text>"
        )
    drawn += [
        f'<text class="tick" text-anchor="middle" x="{across.at(tick):.1f}" '
        f'y="{height - BOTTOM + 15:.1f}">{x.text(tick)}</text>'
        for tick in x.ticks(across, ACROSS)
    ]
    drawn.append(f'<path class="axis" d="M{LEFT:g} {height - BOTTOM:g}H{WIDTH - RIGHT:g}"/>')
    drawn.append(axis_label(x.label, height))
    return "".join(drawn)


def axis_label(label: str, height: float) -> str:
    """Draw what is counted to the right, below the ticks."""
    return (
        f'<text class="tick" text-anchor="middle" x="{(LEFT + WIDTH - RIGHT) / 2:g}" '
        f'y="{height - 5:.1f}">{escape(label)}</text>'
    )


def places(points: Iterable[Point], across: Axis, up: Axis) -> str:
    """Return where points lie, as a line's attribute has them."""
    return " ".join(f"{across.at(x):.1f},{up.at(y):.1f}" for x, y in points)


def svg_of(
    title: str,
    drawn: Iterable[str],
    across: Axis | None = None,
    up: Axis | None = None,
    x: Scale | None = None,
    y: Scale = ACCURACY,
    height: float = HEIGHT,
    data: str = "",
) -> Markup:
    """Return the drawing; with axes, or with `data`, the script can tell the values at a place."""
    known = data
    if across and up and x:
        ends = " ".join(
            f"{value:.6g}"
            for axis in (across, up)
            for value in (axis.low, axis.high, axis.start, axis.end)
        )
        known = f' data-axes="{ends}" data-label="{escape(x.label)}" data-unit="{escape(x.unit)}"'
        known += ' data-whole=""' if x.whole else ""
        known += ' data-plain=""' if y.format != "percent" else ""
    return Markup(
        f'<svg viewBox="0 0 {WIDTH:g} {height:g}" role="img" aria-label="{escape(title)}"{known}>'
        f"{''.join(drawn)}</svg>"
    )
