"""A drawing of the nodes that answer requests together: a row for each exit, the last on top."""

from __future__ import annotations

from collections.abc import Iterator

from markupsafe import Markup, escape

from inference.topology import Node, Topology
from server_app.report.axes import WIDTH, svg_of
from server_app.report.charts import COLOURS

ROW, BOX, GAP, TOP = 84.0, 40.0, 4.0, 6.0
"""Heights of a row and of a node in it, the space beside a node, and that above all rows."""
WIDEST_BOX = 92.0
MOST_IN_A_ROW = 6
"""Nodes beside each other that leave room for their names and rates."""

Places = dict[str, tuple[float, float]]
"""The middle of each node."""


def tree_chart(topology: Topology) -> Markup | None:
    """Draw nodes, what arrives, what each serves and transfers; None where they are too many."""
    rows = {number: [node for node in topology.nodes if node.exit == number]
            for number in range(topology.exits, 0, -1)}  # fmt: skip
    widest = max(map(len, rows.values()))
    if widest > MOST_IN_A_ROW:
        return None
    width = min(WIDEST_BOX, WIDTH / widest - GAP)
    places: Places = {}
    for down, nodes in enumerate(rows.values()):
        for across, node in enumerate(nodes):
            x = WIDTH * (across + 0.5) / len(nodes)
            places[node.name] = (x, TOP + ROW * down + BOX / 2)
    height = TOP + ROW * (len(rows) - 1) + BOX + 20
    edges = [text for node in topology.nodes for text in _edges(topology, node, places)]
    boxes = [text for node in topology.nodes for text in _box(topology, node, places, width)]
    return svg_of("Nodes, and what they serve", [*edges, *boxes], height=height)


def _edges(topology: Topology, node: Node, places: Places) -> Iterator[str]:
    """Draw a node's transfers to its parents, each with its rate."""
    x, y = places[node.name]
    for parent, share in node.divided.items():
        above, top = places[parent]
        start, end = y - BOX / 2, top + BOX / 2
        rate = topology.rates[node.name].transfer * share
        told = escape(f"{node.name} transfers {rate:.3g} requests per second to {parent}")
        yield (
            f'<path class="axis" d="M{x:.1f} {start:.1f}L{above:.1f} {end:.1f}">'
            f"<title>{told}</title></path>"
        )
        near = 0.3  # the way from the node: children of one parent are further apart there
        place = f'x="{x + near * (above - x) + 3:.1f}" y="{start + near * (end - start) + 3:.1f}"'
        yield f'<text class="label" {place}>{rate:.3g}</text>'


def _box(topology: Topology, node: Node, places: Places, width: float) -> Iterator[str]:
    (x, y), rates = places[node.name], topology.rates[node.name]
    yield (
        f'<rect class="node c{(node.exit - 1) % COLOURS}" x="{x - width / 2:.1f}" '
        f'y="{y - BOX / 2:.1f}" width="{width:.1f}" height="{BOX:g}" rx="5"><title>'
        f"{escape(_told(topology, node))}</title></rect>"
    )
    texts = ((y - 5, "label", node.name), (y + 10, "small", f"serves {rates.serving:.3g}"))
    for place, style, text in texts:
        yield _text(x, place, style, text)
    if node.arrival:
        yield _text(x, y + BOX / 2 + 14, "small", f"↑ {node.arrival:g}")


def _told(topology: Topology, node: Node) -> str:
    rates = topology.rates[node.name]
    return (
        f"{node.name}, exit {node.exit}: {node.arrival:g} requests per second arrive here, "
        f"{rates.incoming:.3g} come in, {rates.serving:.3g} are served, {rates.transfer:.3g} "
        "transferred"
    )


def _text(x: float, y: float, style: str, text: str) -> str:
    return (
        f'<text class="{style}" text-anchor="middle" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'
    )
