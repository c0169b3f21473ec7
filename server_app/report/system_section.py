"""The collaborative inference system that a fleet's nodes are: what it serves, and how well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from inference.topology import Topology
from server_app.config.typed import ConfigError, build
from server_app.record.serving_settings import SERVING, UnderSettings, cells_of, serving_of
from server_app.report.amounts import percent
from server_app.report.curves import Figure, Line, figures_of, level_pick, score_pick
from server_app.report.grouping import Group, grouped
from server_app.report.node_tree import tree_chart
from server_app.report.run_data import RunData
from server_app.report.setting_figures import Variant, settings_figure, settings_table
from server_app.report.tables import Table, accuracy_over_runs
from strategies.federation import FleetConfig

BY_ROUND, SYSTEM = "rounds", "system"


@dataclass(frozen=True)
class SystemSection:
    """What a report says of systems: of one group its nodes, too."""

    tree: Markup | None
    tables: Sequence[Table]
    figures: Sequence[Figure]


def system_section(
    groups: Sequence[Group],
    labels: Mapping[Path, Mapping[str, str]] | None = None,
    with_settings: bool = True,
) -> SystemSection | None:
    """Return the section; None where no run has a system. `with_settings` has their table, too."""
    runs = [run for group in groups for run in group.runs]
    if not any("cis" in run.summary for run in runs):
        return None
    alike = grouped(runs, labels, besides=(SERVING,))
    variants = [
        Variant(each.name if len(alike) > 1 else SYSTEM, cells_of([*map(_settings, each.runs)]))
        for each in alike
    ]
    topology = topology_of(runs[0]) if len(groups) == 1 else None
    tables = [_exits_table(groups[0], topology)] if topology else []
    settings = settings_table(variants) if with_settings else None
    by_round = _by_round(groups[0], topology) if len(groups) == 1 else []
    figures = [*by_round, settings_figure(variants)]
    return SystemSection(
        tree_chart(topology) if topology else None,
        [*tables, *filter(None, [settings])],
        [figure for figure in figures if figure is not None],
    )


def topology_of(run: RunData) -> Topology | None:
    """Return the nodes of a run's config; None where it has none, or none that can be read."""
    fleet = run.config.get("fleet")
    try:
        return build(FleetConfig, fleet).topology if isinstance(fleet, Mapping) else None
    except ConfigError:
        return None


def _settings(run: RunData) -> UnderSettings:
    fleet = run.config.get("fleet")
    setting = fleet.get("serving") if isinstance(fleet, Mapping) else None
    return UnderSettings.of(run.seed, serving_of(setting), run.summary)


def _exits_table(group: Group, topology: Topology) -> Table:
    """Return what the nodes of each exit serve, and how good it is alone; the system last."""
    rows = []
    shares = zip(topology.exit_rates, topology.exit_shares, strict=True)
    for number, (rate, share) in enumerate(shares, 1):
        nodes = [node for node in topology.nodes if node.exit == number]
        levels = [run.summary["levels"].get(str(number), {}) for run in group.runs]
        alone = accuracy_over_runs([level.get("accuracy") for level in levels])
        arrival = sum(node.arrival for node in nodes)
        amounts = [f"{arrival:.3g}", f"{rate:.3g}", percent(share)]
        rows.append([f"exit {number}", str(len(nodes)), *amounts, alone])
    total, nodes_of_all = sum(topology.exit_rates), str(len(topology.nodes))
    system = accuracy_over_runs([run.summary.get("cis") for run in group.runs])
    rows.append([SYSTEM, nodes_of_all, f"{total:.3g}", f"{total:.3g}", percent(1.0), system])
    return Table(
        "What exits serve",
        ["", "nodes", "arrive", "served", "share", "accuracy"],
        rows,
        ["Requests per second. An exit's accuracy is that of the level with its number, as if it "
         "answered all test samples; the system's is of what nodes serve: each answers what it is "
         "surest of, and transfers the rest."],
    )  # fmt: skip


def _by_round(group: Group, topology: Topology | None) -> list[Figure]:
    """Return the accuracy of the system as training goes on, among those of its exits."""
    exits = topology.exits if topology else 0
    lines: list[Line] = [
        (number, f"exit {number + 1}", group, level_pick(str(number + 1)))
        for number in range(exits)
    ]
    lines.append((exits, SYSTEM, group, score_pick("cis")))
    found = figures_of({"System and exits": lines})
    return [Figure(each.title, each.legend, {BY_ROUND: each.charts[BY_ROUND]}) for each in found]
