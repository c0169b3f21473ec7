"""`nestfl report`: writes a page about one run, several runs, or a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from nestfl.commands.group import app
from nestfl.commands.shared_options import FILE, refuse


@app.command(
    "report",
    epilog="""\b
    Examples:
      nestfl report runs/RUN
      nestfl report runs/* --output all.html""",
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
def report_command(
    runs: tuple[Path, ...], output: Path | None, best: bool, figures: Path | None
) -> None:
    """Make a page about a run, or about several: those that differ in their seed are averaged."""
    try:
        click.echo(f"report: {report(runs, output, best, figures)}")
    except (ValueError, OSError) as error:
        refuse("report", error)


def report(
    runs: Sequence[Path],
    output: Path | None = None,
    best: bool = False,
    figures: Path | None = None,
) -> Path:
    """Write the report and return its path: in the run's directory, or for several runs here.

    With `best`, scores are those after each run's best round by validation data. The figures are
    also written to a folder of their own, if one is given.
    """
    from server_app.record.files import COMPARISON_FILE, REPORT_FILE
    from server_app.report.page import write_report

    places = [run.resolve() for run in runs]
    repeated = [str(run) for run in runs if places.count(run.resolve()) > 1]
    if repeated:
        raise ValueError(f"{' and '.join(dict.fromkeys(repeated))}: the same run more than once")
    if len(runs) == 1 and (runs[0] / COMPARISON_FILE).is_file():
        return _of_a_comparison(runs[0], output, best, figures)
    file = output or (runs[0] / REPORT_FILE if len(runs) == 1 else Path(REPORT_FILE))
    _check_file(file)
    write_report(runs, file, at_best=best, figures=figures)
    return file


def _of_a_comparison(folder: Path, output: Path | None, best: bool, figures: Path | None) -> Path:
    """Write the report of a comparison's finished runs."""
    from nestfl.comparing.comparison import Comparison
    from nestfl.comparing.outcome import Known, Outcome
    from server_app.record.files import REPORT_FILE

    comparison, baseline, target = Comparison.read(folder)
    file = output or folder / REPORT_FILE
    _check_file(file)
    outcome = Outcome.of(comparison, baseline, target, Known.of(comparison))
    if not outcome.groups:
        raise ValueError(f"nothing to report yet: no run of the comparison {folder} has finished")
    outcome.write_report(file, best, figures)
    return file


def _check_file(file: Path) -> None:
    from server_app.record.files import REPORT_FILE

    if file.is_dir():
        raise ValueError(
            f"--output {file} is a folder: expected a file, such as {file / REPORT_FILE}"
        )
