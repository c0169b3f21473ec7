"""`nestfl split`, and what it takes."""

from __future__ import annotations

from typing import Any

import click

from nestfl.cli.group import app
from nestfl.cli.options import A_SHARE, FILE, refuse


@app.command(
    epilog="""\b
    Examples:
      nestfl split runs/RUN --output parts
      nestfl split runs/RUN --output parts --exits 1,2,4 --forward 0.4,0.3"""
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
def split(**request: Any) -> None:
    """Split a trained network into the parts of the nodes that serve it."""
    from nestfl.commands import split as splitter  # imports torch: not for --help
    from strategies.federation import FederationError

    try:
        written = splitter.split(splitter.Request(**request))
    except (ValueError, OSError, FederationError) as error:
        refuse("split", error)
    splitter.show(written, request["output"])
