"""`nestfl data`, and what it takes."""

from __future__ import annotations

from pathlib import Path

import click

from nestfl.cli.group import app
from nestfl.cli.options import FILE, refuse
from nestfl.commands.overrides import TakesOverrides


@app.command(
    cls=TakesOverrides,
    epilog="""\b
    Examples:
      nestfl data photos/
      nestfl data reviews.csv dataset.text=body dataset.label=stars
      nestfl data watch.parquet dataset.label=exercise dataset.window=100
      nestfl data photos/ dataset.partition=dirichlet fleet.clients=10 --plot p.svg
      nestfl data dataset=cifar10 dataset.path=cifar""",
)
@click.argument(
    "arguments",
    nargs=-1,
    metavar="[PATH] [KEY=VALUE]...",
    help="A folder or a file, and settings that differ from conf/, as of nestfl run.",
)
@click.option(
    "--plot", metavar="FILE", type=FILE, help="Draw classes and clients to this .svg or .png file."
)
@click.option("--json", is_flag=True, help="Print JSON instead of tables.")
def data(arguments: tuple[str, ...], plot: Path | None, json: bool) -> None:
    """Look at data: classes, sizes, broken files, and what each client would get."""
    from nestfl.commands import data as looker  # imports torch: not for --help

    try:
        looked = looker.look(arguments)
        if plot is not None:
            looker.draw(looked, plot)
    except (ValueError, OSError) as error:
        refuse("data", error)
    click.echo(looker.as_json(looked)) if json else looker.show(looked)
    raise SystemExit(2 if looked.problem else 0)
