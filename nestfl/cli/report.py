"""`nestfl report`, and what it takes."""

from __future__ import annotations

from pathlib import Path

import click

from nestfl.cli.group import app
from nestfl.cli.options import FILE, refuse


@app.command(
    epilog="""\b
    Examples:
      nestfl report runs/RUN
      nestfl report runs/* --output all.html"""
)
@click.argument(
    "runs", nargs=-1, required=True, type=FILE, metavar="RUN...", help="Run directories."
)
@click.option(
    "--output",
    metavar="FILE",
    type=FILE,
    help="Where the page goes; report.html in the run's directory, or here if there are several.",
)
@click.option(
    "--best",
    is_flag=True,
    help="Show the scores after each run's best round by validation data, not after its last.",
)
@click.option(
    "--figures", metavar="FOLDER", type=FILE, help="Write the figures there as well, as SVG files."
)
def report(runs: tuple[Path, ...], output: Path | None, best: bool, figures: Path | None) -> None:
    """Make a page about a run, or about several: those that differ in their seed are averaged."""
    from nestfl.commands import report as reporter  # imports torch: not for --help

    try:
        click.echo(f"report: {reporter.report(runs, output, best, figures)}")
    except (ValueError, OSError) as error:
        refuse("report", error)
