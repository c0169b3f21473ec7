"""Charts of bars: how many clients have which accuracy, and what came of a round's replies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from server_app.report.amounts import counted, listed
from server_app.report.axes import (
    BOTTOM,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Axis,
    Scale,
    axis_label,
    frame,
    svg_of,
)
from server_app.report.charts import COLOURS


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
            filled.setdefault(min(bins - 1, int(score * bins + 1e-9)), []).append(client)
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
            who = f"client {listed(clients)}" if lane.named else counted(len(clients), "client")
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
    drawn.append(axis_label(f"accuracy of a client, % ({title})", height))
    return svg_of(title, drawn, height=height)


@dataclass(frozen=True)
class Stack:
    """A bar of the counts of some rounds, one on the other, and what is said of it."""

    first: int
    last: int
    counts: Sequence[int]
    text: str


def stacks_chart(stacks: Sequence[Stack], classes: Sequence[str], title: str) -> Markup:
    """Draw bars of rounds; `classes` are the styles of their parts."""
    most = max((sum(stack.counts) for stack in stacks), default=1)
    height, up = 170.0, Axis(0, max(1, most), 170.0 - BOTTOM, TOP)
    across = Axis(stacks[0].first - 0.5, stacks[-1].last + 0.5, LEFT, WIDTH - RIGHT)
    drawn = [frame(across, up, Scale("round", whole=True), Scale("clients", whole=True), height)]
    for stack in stacks:
        left, right = across.at(stack.first - 0.5), across.at(stack.last + 0.5)
        wide, base = right - left, 0
        for count, style in zip(stack.counts, classes, strict=True):
            if count:
                top, bottom = up.at(base + count), up.at(base)
                drawn.append(
                    f'<rect class="{style}" x="{left + wide * 0.1:.1f}" y="{top:.1f}" '
                    f'width="{wide * 0.8:.1f}" height="{bottom - top:.1f}">'
                    f"<title>{escape(stack.text)}</title></rect>"
                )
                base += count
    return svg_of(title, drawn, height=height)
