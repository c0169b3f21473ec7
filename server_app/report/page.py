"""Writes the report of one run or of several: one HTML file that needs no network and no server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from server_app.config.typed import ConfigError
from server_app.record.files import write_text
from server_app.report.amounts import percent
from server_app.report.cards import Card, cards_of
from server_app.report.class_section import ClassSection, class_section
from server_app.report.client_section import clients_table, spread_figures, spread_table
from server_app.report.computation_section import computation_table
from server_app.report.curves import (
    Figure,
    Legend,
    accuracy_figures,
    front_figure,
    loss_figures,
    perplexity_figures,
)
from server_app.report.fault_section import faults_chart, faults_sentence, faults_tables
from server_app.report.figure_files import write_figures
from server_app.report.fleet_section import Fleet, fleets, levels_costs
from server_app.report.grouping import Group, grouped
from server_app.report.history import Origin, origins, runs_table, subtitle, warnings
from server_app.report.reading import read_run
from server_app.report.run_data import RunData
from server_app.report.script import SCRIPT
from server_app.report.style import STYLE
from server_app.report.system_section import SystemSection, system_section
from server_app.report.tables import (
    Table,
    differences_table,
    groups_table,
    levels_table,
    perplexity_tables,
)
from server_app.report.template import TEMPLATE

SECTIONS = (
    ("results", "Results"),
    ("accuracy", "Accuracy"),
    ("cost", "Cost"),
    ("fleet", "Fleet"),
    ("clients", "Clients"),
    ("faults", "Faults"),
    ("config", "How it was run"),
)
CLASSES = ("classes", "Classes")
"""The section of runs whose tests told classes apart, before that of cost."""
SYSTEM = ("system", "Collaborative inference")
"""The section of fleets that are one, before the fleet's own."""
OVERS = (("rounds", "by round"), ("bytes", "by bytes sent"), ("seconds", "by device seconds"))
MOST_CONFIGS = 24
"""Configs that are shown whole."""
NO_FLEET = (
    "Not known: an older version of nestfl made this run, which did not record its levels and "
    "clients."
)


@dataclass(frozen=True)
class Page:
    """All that the template shows."""

    title: str
    subtitle: str
    warnings: Sequence[str]
    tables: Sequence[Table]
    cards: Sequence[Card]
    results: Sequence[Table]
    figures: Sequence[Figure]
    classes: ClassSection | None
    front: Figure | None
    has_budgets: bool
    costs: Table | None
    computation: Table | None
    system: SystemSection | None
    fleets: Sequence[Fleet]
    level_legend: Legend
    spread: Sequence[Figure]
    spread_table: Table | None
    clients_table: Table | None
    faults: str
    faults_chart: Markup | None
    fault_tables: Sequence[Table]
    starts: Sequence[Origin]
    runs_table: Table | None
    differences: Table | None
    configs: Sequence[tuple[str, str]]
    runs: int
    at_best: bool
    no_fleet: str = NO_FLEET

    @property
    def sections(self) -> list[tuple[str, str]]:
        """The sections that there are, by their ids."""
        shown, optional = list(SECTIONS), {"cost": (self.classes, CLASSES),
                                           "fleet": (self.system, SYSTEM)}  # fmt: skip
        for before, (there, section) in optional.items():
            if there:
                shown.insert([name for name, _ in shown].index(before), section)
        return shown

    @property
    def overs(self) -> list[tuple[str, str]]:
        """What accuracy can be drawn over."""
        return [each for each in OVERS if any(each[0] in figure.charts for figure in self.figures)]

    @property
    def shared_legend(self) -> Legend:
        """One legend, where all figures have the same."""
        legends = [figure.legend for figure in self.figures]
        return legends[0] if len(legends) > 1 and all(x == legends[0] for x in legends) else []

    @property
    def tables_note(self) -> str:
        """What tells the tables that were given from what follows them."""
        if not (self.tables and self.at_best):
            return ""
        return (
            "The tables above are of each run's last round; the scores below are those after its "
            "best round by validation data."
        )

    @property
    def figures_note(self) -> str:
        """What the curves are of."""
        several = self.runs > 1
        band = " A line is the mean over seeds, the band goes from the lowest to the highest run."
        return (
            "Tested on the server's test set; bytes are of training alone, both ways, and device "
            f"seconds are the sum over all clients.{band if several else ''}"
        )


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
    The curves and the front go to files of their own in a folder for `figures`, where one is given.
    """
    read = [read_run(directory, at_best) for directory in runs]
    with_rounds = [run for run in read if run.lines]
    if not with_rounds:
        names = ", ".join(str(run.directory) for run in read)
        raise ConfigError(f"nothing to report yet: no round is recorded in {names}")
    if not file.parent.is_dir():
        raise ConfigError(f"{file} cannot be written: {file.parent} is no folder")
    page = page_of(read, file, title, tables, labels)
    write_text(file, render(page))
    if figures is not None:
        matrices = page.classes.matrices if page.classes else []
        systems = page.system.figures if page.system else []
        front = [page.front] if page.front else []
        write_figures([*page.figures, *matrices, *front, *systems], figures)


def page_of(
    read: Sequence[RunData],
    file: Path,
    title: str | None = None,
    tables: Sequence[Table] = (),
    labels: Mapping[Path, Mapping[str, str]] | None = None,
) -> Page:
    """Return what the report of runs shows; those without a round are named alone."""
    groups = grouped([run for run in read if run.lines], labels)
    alone = len(groups) == 1
    first = groups[0].runs[0]
    return Page(
        title=title or _title(groups),
        subtitle=subtitle(groups),
        warnings=warnings(read),
        tables=tables,
        cards=cards_of(groups[0]) if alone else [],
        results=[
            levels_table(groups[0]) if alone else groups_table(groups),
            *perplexity_tables(groups),
        ],
        figures=[*accuracy_figures(groups), *perplexity_figures(groups), *loss_figures(groups)],
        classes=class_section(groups),
        front=front_figure(groups),
        has_budgets=any(run.budgets for group in groups for run in group.runs),
        costs=levels_costs(groups),
        computation=computation_table(groups),
        system=system_section(groups, labels, with_settings=not tables),
        fleets=fleets(groups),
        level_legend=[(n, f"level {level}") for n, level in enumerate(first.level_facts)],
        spread=spread_figures(groups),
        spread_table=spread_table(groups),
        clients_table=clients_table(groups),
        faults=faults_sentence(groups),
        faults_chart=faults_chart(first) if len(read) == 1 else None,
        fault_tables=faults_tables(groups),
        starts=origins(groups),
        runs_table=runs_table(groups, file) if len(read) > 1 else None,
        differences=differences_table(groups),
        configs=[(group.name, group.runs[0].config_text) for group in groups][:MOST_CONFIGS],
        runs=len(read),
        at_best=first.at_best,
    )


def render(page: Page) -> str:
    """Return the page as HTML."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(TEMPLATE).render(
        page=page,
        sections=page.sections,
        style=Markup(STYLE),
        script=Markup(SCRIPT),
        over_class=_over_class,
        percent=percent,
    )


def _over_class(chart: Markup, over: str) -> Markup:
    return Markup(str(chart).replace("<svg ", f'<svg class="over-{over}" ', 1))


def _title(groups: Sequence[Group]) -> str:
    runs = [run for group in groups for run in group.runs]
    return runs[0].name if len(runs) == 1 else f"{len(runs)} runs in {len(groups)} groups"
