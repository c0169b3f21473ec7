"""`nestfl check-model`, and what it takes."""

from __future__ import annotations

from typing import Any

import click

from nestfl.cli.group import app
from nestfl.cli.options import SIZES, refuse


@app.command(
    "check-model",
    epilog="""\b
    Examples:
      nestfl check-model mine.py
      nestfl check-model mine.py --model twin norm=gn
      nestfl check-model examples/distilbert.py size=4 vocabulary=100

    Ends with 1 where a network lacks a property.""",
)
@click.argument(
    "plugin",
    help="A Python file or package with networks of your own, or the name of an installed one.",
)
@click.argument(
    "options", nargs=-1, metavar="[OPTION=VALUE]...", help="Options of the network's constructor."
)
@click.option("--model", metavar="NAME", help="One of its networks; all of them if not given.")
@click.option("--classes", "num_classes", metavar="N", type=SIZES, default=10, help="Of the data.")
@click.option("--channels", "in_channels", metavar="N", type=SIZES, default=3, help="Of an image.")
@click.option("--image-size", metavar="N", type=SIZES, default=32, help="Height and width.")
@click.option("--tokens", metavar="N", type=SIZES, default=16, help="Tokens of a text.")
def check_model(plugin: str, options: tuple[str, ...], model: str | None, **shape: Any) -> None:
    """Check every property of slicing on networks of your own, and say what to change."""
    from nestfl.commands import check_model as checker  # imports torch: not for --help

    try:
        raise SystemExit(checker.check(plugin, model, options, shape))
    except ValueError as error:
        refuse("check-model", error)
