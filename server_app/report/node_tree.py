"""A drawing of the nodes that answer requests together: a row for each exit, the last on top."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from inference.topology import Node, Topology
from server_app.report.axes import WIDTH, svg_of
from server_app.report.charts import COLOURS

TOP, ROW, BOX, BELOW = 16.0, 88.0, 40.0, 20.0
"""Where the first row begins; the heights of a row, of a node, and of what is below the last."""
GAP, WIDEST, LETTER = 4.0, 92.0, 6.0
"""The space beside a node, the width that it has at most, and that of a letter, about."""
NAMED = 48.0
"""The width from which on a node has room for its name."""
MOST_IN_A_ROW = 16
"""Nodes beside each other that leave room for their rates."""


def tree_chart(topology: Topology) -> Markup | None:
    """Draw nodes, what arrives, what each serves and transfers; None where they are too many."""
    rows = [
        [node for node in topology.nodes if node.exit == number]
        for number in range(topology.exits, 0, -1)
    ]
    if max(map(len, rows)) > MOST_IN_A_ROW:
        return None
    drawing = _Drawing(topology, rows)
    edges = [text for node in topology.nodes for text in drawing.edges(node)]
    boxes = [text for node in topology.nodes for text in drawing.box(node)]
    height = TOP + ROW * (len(rows) - 1) + BOX + BELOW
    return svg_of("Nodes, by exit", [*edges, *boxes, *drawing.names()], height=height)


@dataclass(frozen=True)
class _Drawing:
    """Where nodes are, and how they are drawn."""

    topology: Topology
    rows: Sequence[Sequence[Node]]

    @property
    def width(self) -> float:
        """Of a node."""
        return min(WIDEST, WIDTH / max(map(len, self.rows)) - GAP)

    def place(self, node: Node) -> tuple[float, float]:
        """Return the middle of a node."""
        down = next(number for number, row in enumerate(self.rows) if node in row)
        row = self.rows[down]
        return WIDTH * (row.index(node) + 0.5) / len(row), TOP + ROW * down + BOX / 2

    def names(self) -> Iterator[str]:
        """Name the exits, each above its row at the left."""
        for down in range(len(self.rows)):
            y = TOP + ROW * down - 5
            yield f'<text class="label" x="2" y="{y:g}">exit {len(self.rows) - down}</text>'

    def edges(self, node: Node) -> Iterator[str]:
        """Draw a node's transfers to its parents, each with its rate."""
        x, y = self.place(node)
        for parent, share in node.divided.items():
            above, top = self.place(self.topology.named[parent])
            start, end = y - BOX / 2, top + BOX / 2
            rate = self.topology.rates[node.name].transfer * share
            told = f"{node.name} transfers {rate:.3g} requests per second to {parent}"
            yield (
                f'<path class="axis" d="M{x:.1f} {start:.1f}L{above:.1f} {end:.1f}">'
                f"<title>{escape(told)}</title></path>"
            )
            near = 0.3  # of the way: children of one parent are further apart at their end
            beside, there = x + near * (above - x) + 3, start + near * (end - start) + 3
            yield f'<text class="label" x="{beside:.1f}" y="{there:.1f}">{rate:.3g}</text>'

    def box(self, node: Node) -> Iterator[str]:
        """Draw a node with its name, what it serves, and what arrives there first."""
        (x, y), width = self.place(node), self.width
        rates = self.topology.rates[node.name]
        told = (
            f"{node.name}, exit {node.exit}, in requests per second: {node.arrival:.3g} arrive "
            f"here, {rates.incoming:.3g} come in, {rates.serving:.3g} are served, "
            f"{rates.transfer:.3g} transferred"
        )
        yield (
            f'<rect class="node c{(node.exit - 1) % COLOURS}" x="{x - width / 2:.1f}" '
            f'y="{y - BOX / 2:.1f}" width="{width:.1f}" height="{BOX:g}" rx="5"><title>'
            f"{escape(told)}</title></rect>"
        )
        if width >= NAMED:
            most = int(width / LETTER)
            name = node.name if len(node.name) <= most else f"{node.name[: most - 1]}…"
            yield _text(x, y - 5, "label", name)
            yield _text(x, y + 10, "small", f"serves {rates.serving:.3g}")
        else:
            yield _text(x, y + 3, "small", f"{rates.serving:.3g}")
        if node.arrival:
            x -= width / 3 if node.exit > 1 else 0  # beside what comes in from below
            yield _text(x, y + BOX / 2 + 14, "small", f"↑ {node.arrival:.3g}")


def _text(x: float, y: float, style: str, text: str) -> str:
    return (
        f'<text class="{style}" text-anchor="middle" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'
    )
