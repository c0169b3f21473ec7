"""Writes the report of one run or of several: one HTML file that needs no network and no server."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from server_app.config.typed import ConfigError
from server_app.record.files import write_text
from server_app.record.run_record import RunRecord
from server_app.report.blocks import Figures, Section, Table
from server_app.report.charts import tint, write_figures
from server_app.report.class_section import class_blocks
from server_app.report.fleet_section import client_blocks, fleet_blocks
from server_app.report.grouping import Group, grouped
from server_app.report.history import fault_blocks, origin_blocks, subtitle, warnings
from server_app.report.run_files import read_run
from server_app.report.scores import cost_blocks, curve_blocks, result_blocks
from server_app.report.script import SCRIPT
from server_app.report.serving_section import serving_blocks
from server_app.report.style import STYLE
from server_app.report.template import TEMPLATE

log = logging.getLogger("flwr")  # the logger that `flwr log` shows


def write_report(
    runs: Sequence[Path],
    file: Path,
    *,
    title: str | None = None,
    tables: Sequence[Table] = (),
    labels: Mapping[Path, Mapping[str, str]] | None = None,
    at_best: bool = False,
    figures: Path | None = None,
) -> None:
    """Write the report of runs to a file; `tables` are shown at its top.

    Runs that differ in their seed alone are one group. `labels` are each run's choices, such as
    {"strategy": "heterofl", "seed": "0"}: where given, they make the groups rather than configs.
    Scores are those after each run's last round, or `at_best` after its best by validation data.
    The figures go to files of their own in a folder for `figures`, where one is given.
    """
    read = [read_run(directory, at_best) for directory in runs]
    if not any(run.lines for run in read):
        names = ", ".join(str(run.directory) for run in read)
        raise ConfigError(f"nothing to report yet: no round is recorded in {names}")
    if not file.parent.is_dir():
        raise ConfigError(f"{file} cannot be written: {file.parent} is no folder")
    groups = grouped([run for run in read if run.lines], labels)
    sections = sections_of(groups, file, tables, labels, len(read))
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    page = environment.from_string(TEMPLATE).render(
        title=title or _title(groups),
        subtitle=subtitle(groups),
        warnings=warnings(read),
        sections=sections,
        runs=len(read),
        style=Markup(STYLE),
        script=Markup(SCRIPT),
        tint=tint,
    )
    write_text(file, page)
    if figures is not None:
        blocks = [block for section in sections for block in section.blocks]
        drawn = [each for block in blocks if isinstance(block, Figures) for each in block.figures]
        write_figures(drawn, figures)


def _title(groups: Sequence[Group]) -> str:
    runs = [run for group in groups for run in group.runs]
    return runs[0].name if len(runs) == 1 else f"{len(runs)} runs in {len(groups)} groups"


def sections_of(
    groups: Sequence[Group],
    file: Path,
    tables: Sequence[Table],
    labels: Mapping[Path, Mapping[str, str]] | None,
    runs: int,
) -> list[Section]:
    """Return the sections that have something to show.

    `runs` is the number of runs with those that have no round, and thus no group.
    """
    serving = serving_blocks(groups, labels, with_settings=not tables)
    found = [
        Section("results", "Results", "Results", result_blocks(groups, tables)),
        Section("accuracy", "Accuracy", "Accuracy as training goes on", curve_blocks(groups)),
        Section("classes", "Classes", "Classes", class_blocks(groups)),
        Section("cost", "Cost", "Accuracy against cost", cost_blocks(groups)),
        Section("system", "Collaborative inference", "Collaborative inference", serving),
        Section("fleet", "Fleet", "The fleet", fleet_blocks(groups)),
        Section("clients", "Clients", "Spread over clients", client_blocks(groups)),
        Section("faults", "Faults", "Refused, failed and late clients", fault_blocks(groups, runs)),
        Section("config", "How it was run", "How it was run", origin_blocks(groups, file, runs)),
    ]
    return [section for section in found if section.blocks]


def make_report(record: RunRecord) -> None:
    """Write report.html of a run with at least one round; a failure is logged, no error."""
    try:
        if not record.metrics():
            return
        write_report([record.directory], record.report_file)
    except Exception as error:  # the run's results are there
        log.warning("no report was made: %s: %s", type(error).__name__, error)
