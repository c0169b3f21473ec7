"""`nestfl runs`, and what it takes."""

from __future__ import annotations

from pathlib import Path

import click

from nestfl.cli.group import app
from nestfl.cli.options import FILE, refuse


@app.command(
    epilog="""\b
    Examples:
      nestfl runs
      nestfl runs runs/compare-seed-strategy-1f2e3d4c --csv"""
)
@click.argument(
    "folder", type=FILE, default="runs", help="Runs below it are shown, those of comparisons too."
)
@click.option("--json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--csv", is_flag=True, help="Print CSV instead of a table.")
def runs(folder: Path, json: bool, csv: bool) -> None:
    """List all runs below a folder: how far they came, how good they are, how they ended."""
    from nestfl.commands import runs as lister  # without torch: it is to be fast
    from nestfl.run_list import RunList

    try:
        if json and csv:
            raise ValueError("--json and --csv are both given: expected one of them")
        found = RunList.below(folder)
    except (ValueError, OSError) as error:
        refuse("runs", error)
    if json or csv:
        click.echo(lister.as_json(found) if json else lister.as_csv(found))
    else:
        lister.show(found)
    for problem in lister.problems(found):
        click.echo(f"nestfl runs: {problem}", err=True)
