"""`nestfl split`: writes the parts of a run's network for the nodes that will serve it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from data.ranges import SHARE, SIZE
from inference.rate_thresholds import check_threshold
from inference.topology import Topology
from nestfl.watching.passes import watched_on
from server_app.splitting import SplitError, SplitNode, Splitter, chain, check_new


@dataclass(frozen=True)
class Request:
    """The options of `nestfl split`, checked."""

    run: Path
    output: Path
    best: bool = False
    exits: str | None = None
    """Of a chain of nodes, such as 1,2,4; the run's own nodes if not given."""
    forward: str | None = None
    """The share of what comes in that each of a chain passes on, such as 0.4,0.3."""
    threshold: float | None = None

    def __post_init__(self) -> None:
        if self.threshold is not None:
            check_threshold(self.threshold)
        if self.forward is not None and self.exits is None:
            raise SplitError("--forward is for a chain of nodes: give its --exits, such as 1,2,4")
        if self.forward is not None and self.threshold is not None:
            raise SplitError("give one of --forward and --threshold")


def split(request: Request) -> dict[str, SplitNode]:
    """Write the folders, and return what is in them."""
    check_new(request.output)  # before minutes of scoring
    console = Console(stderr=True, soft_wrap=True)
    splitter = Splitter(request.run, request.best, watched_on(console))
    topology = _topology(request, splitter)
    if request.threshold is None:
        thresholds = splitter.thresholds(topology)
        for line in splitter.unreached(topology, thresholds):
            console.print(line)
    else:
        thresholds = {
            node.name: request.threshold if node.parents else 0.0 for node in topology.nodes
        }
    limits = request.exits is None and splitter.fleet.serving is None
    return splitter.split(topology, thresholds, request.output, limits)


def _topology(request: Request, splitter: Splitter) -> Topology:
    if request.exits is not None:
        exits = _numbers("--exits", request.exits, int)
        if request.forward is None and request.threshold is None and len(exits) > 1:
            raise SplitError(
                "nothing says what nodes pass on: give --forward, a share for each but the last, "
                "or a --threshold of confidence"
            )
        share = (0.5,) * (len(exits) - 1)  # which is no matter where there is a threshold
        given = share if request.forward is None else _numbers("--forward", request.forward, float)
        return chain(exits, given)
    found = splitter.fleet.topology
    if found is None:
        units = splitter.level.exits
        raise SplitError(
            f"{request.run} has no nodes that serve together: choose of its {len(units)} exits for "
            "a chain of nodes, such as --exits " + ",".join(map(str, range(1, len(units) + 1)))
        )
    return found


def _numbers(option: str, text: str, kind: type[int] | type[float]) -> tuple[Any, ...]:
    try:
        found = tuple(kind(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise SplitError(f"{option} {text!r}: expected numbers with commas between") from None
    limits = SHARE if kind is float else SIZE
    return tuple(limits.check(option, each) for each in found)


def show(written: dict[str, SplitNode], output: Path) -> None:
    """Print what each node has."""
    table = Table(title=f"Parts in {output}")
    for heading in ("node", "exit", "units", "weights", "threshold", "sends", "parents"):
        table.add_column(heading, justify="right")
    for name, node in written.items():
        facts = node.facts
        table.add_row(
            name,
            str(facts.exit),
            f"{facts.first + 1}-{facts.last}",
            f"{node.weights / 1000:.1f} kB",
            f"{facts.threshold:.3f}" if facts.parents else "",
            f"{node.sends} B" if facts.parents else "",
            ", ".join(facts.parents),
        )
    Console().print(table)
