"""`nestfl variance`, and what it takes."""

from __future__ import annotations

import click

from data.ranges import Range
from nestfl.cli.group import app
from nestfl.cli.options import plugin_option, refuse, whole
from nestfl.commands.overrides import TakesOverrides


@app.command(
    cls=TakesOverrides,
    epilog="""\b
    Examples:
      nestfl variance strategy=serving_rate fleet=cis_7
      nestfl variance experiment=cis_table1 dataset.path=cifar --batches 64""",
)
@click.argument(
    "overrides",
    nargs=-1,
    metavar="[KEY=VALUE]...",
    help="Settings that differ from conf/, as of nestfl run.",
)
@click.option(
    "--batches",
    metavar="N",
    type=whole(Range(2, 2**31 - 1)),
    help="Batches at most; all if not given.",
)
@plugin_option()
@click.option("--json", is_flag=True, help="Print JSON instead of a table.")
def variance(overrides: tuple[str, ...], batches: int | None, json: bool) -> None:
    """Measure how much each exit's gradients vary over batches, before any training."""
    from nestfl.commands import variance as measurer  # imports torch: not for --help

    try:
        exits = measurer.measure(overrides, batches)
    except (ValueError, OSError) as error:
        refuse("variance", error)
    click.echo(measurer.as_json(exits)) if json else measurer.show(exits)
