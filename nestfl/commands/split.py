"""`nestfl split`: writes the parts of a run's network for the nodes that will serve it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nestfl.commands.group import app
from nestfl.commands.shared_options import A_SHARE, FILE, refuse

if TYPE_CHECKING:
    from inference.topology import Topology
    from server_app.splitting import SplitNode, Splitter


@app.command(
    "split",
    epilog="""\b
    Examples:
      nestfl split runs/RUN --output parts
      nestfl split runs/RUN --output parts --exits 1,2,4 --forward 0.4,0.3""",
)
@click.argument("run", type=FILE, help="A run directory, or a checkpoint in one.")
@click.option(
    "--output", metavar="FOLDER", type=FILE, required=True, help="A new folder, one below for each."
)
@click.option("--best", is_flag=True, help="Take the run's best checkpoint on validation data.")
@click.option(
    "--exits",
    metavar="LIST",
    help="A chain of nodes at these exits, such as 1,2,4; the run's own nodes if not given.",
)
@click.option(
    "--forward",
    metavar="LIST",
    help="The share of what comes to it that each node of the chain but the last passes on.",
)
@click.option(
    "--threshold",
    metavar="SHARE",
    type=A_SHARE,
    help="Confidence from which on all nodes answer; by the nodes' rates if not given.",
)
def split_command(**request: Any) -> None:
    """Split a trained network into the parts of the nodes that serve it."""
    from strategies.federation import FederationError

    try:
        written = split(Request(**request))
    except (ValueError, OSError, FederationError) as error:
        refuse("split", error)
    show(written, request["output"])


@dataclass(frozen=True)
class Request:
    """The options of `nestfl split`, checked."""

    run: Path
    output: Path
    best: bool = False
    exits: str | None = None
    """Exits of a chain of nodes, such as 1,2,4; default (None): the run's own nodes."""
    forward: str | None = None
    """Share of its samples that each node of a chain forwards, such as 0.4,0.3."""
    threshold: float | None = None

    def __post_init__(self) -> None:
        from inference.rate_thresholds import check_threshold
        from server_app.splitting import SplitError

        if self.threshold is not None:
            check_threshold(self.threshold)
        if self.forward is not None and self.exits is None:
            raise SplitError("--forward is for a chain of nodes: give its --exits, such as 1,2,4")
        if self.forward is not None and self.threshold is not None:
            raise SplitError("give one of --forward and --threshold")


def split(request: Request) -> dict[str, SplitNode]:
    """Write the nodes' folders, and return their content by node."""
    from rich.console import Console

    from nestfl.watching.passes import watched_on
    from server_app.splitting import Splitter, check_new

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
    from server_app.splitting import SplitError, chain

    if request.exits is not None:
        exits = _numbers("--exits", request.exits, int)
        if request.forward is None and request.threshold is None and len(exits) > 1:
            raise SplitError(
                "nothing says what nodes pass on: give --forward, a share for each but the last, "
                "or a --threshold of confidence"
            )
        share = (0.5,) * (len(exits) - 1)  # unused if there is a threshold
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


def _numbers(option: str, text: str, kind: type[int] | type[float]) -> tuple[int, ...]:
    from server_app.splitting import SplitError

    try:
        return tuple(kind(part) for part in text.split(",") if part.strip())  # type: ignore[misc]
    except ValueError:
        raise SplitError(f"{option} {text!r}: expected numbers with commas between") from None


def show(written: dict[str, SplitNode], output: Path) -> None:
    """Print the files and sizes of each node."""
    from rich.console import Console
    from rich.table import Table

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
