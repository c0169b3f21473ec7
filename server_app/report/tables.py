"""Tables of a report: what is in them, and those of the results and of the configs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from server_app.report.amounts import percent
from server_app.report.grouping import ABSENT, Group, differences, settings
from server_app.report.run_data import RunData, by_number
from training.perplexity import perplexity_of, shown

LONGEST_NAME = 48
"""Letters; what is longer is broken into lines."""


@dataclass(frozen=True)
class Table:
    """A table of a report; all of it is text."""

    heading: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()

    @property
    def prose(self) -> list[bool]:
        """Whether a column holds sentences rather than numbers and names, for each."""
        return [
            any(len(row[place]) > LONGEST_NAME for row in self.rows)
            for place in range(len(self.columns))
        ]


def accuracy_over_runs(values: Sequence[float | None]) -> str:
    """Return a group's accuracy: the mean, and of several runs the lowest and the highest."""
    known = [value for value in values if value is not None]
    if not known:
        return ABSENT
    if len(known) == 1:
        return percent(known[0])
    mean, low, high = (f"{100 * share:.1f}" for share in (fmean(known), min(known), max(known)))
    return f"{mean} ({low} to {high}) %"


def perplexity_over_runs(values: Sequence[float | None]) -> str:
    """Return a group's perplexity: the mean, and of several runs the lowest and the highest."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return shown(known[0]) if known else ABSENT
    return f"{shown(fmean(known))} ({shown(min(known))} to {shown(max(known))})"


def perplexity_tables(groups: Sequence[Group]) -> list[Table]:
    """Return the perplexity of each level, or of several groups; none of other networks."""
    runs = [run for group in groups for run in group.runs]
    if not any(perplexity_of("mean") in run.summary for run in runs):
        return []
    levels, kinds = _all([run.levels for run in runs]), _all([run.kinds for run in runs])
    notes = ["The lower, the better. Of clients it is the mean of their own."]

    def cells(group: Group, level: str | None, scores: Sequence[str]) -> list[str]:
        found = [run.summary if level is None else run.summary["levels"].get(level, {})
                 for run in group.runs]  # fmt: skip
        return [
            perplexity_over_runs([each.get(perplexity_of(score)) for each in found])
            for score in scores
        ]

    if len(groups) == 1:
        rows = [
            [_level_name(level, groups[0].runs), *cells(groups[0], level, ["accuracy", *kinds])]
            for level in levels
        ]
        return [Table("Perplexity of each level", ["level", "own answer", *kinds], rows, notes)]
    scores = ["mean", "worst", *kinds]
    rows = [
        [
            group.name,
            *cells(group, None, scores),
            *(cells(group, level, ["accuracy"])[0] for level in levels),
        ]
        for group in groups
    ]
    columns = ["settings", *scores, *(f"level {level}" for level in levels)]
    return [Table("Perplexity of each group", columns, rows, notes)]


def levels_table(group: Group) -> Table:
    """Return the accuracy of each level and exit of a group's runs."""
    runs = group.runs
    names = _all([run.levels for run in runs])
    exits, kinds = _all([run.exits for run in runs]), _all([run.kinds for run in runs])
    start = any("start" in level for run in runs for level in run.summary["levels"].values())
    columns = ["level", *(["start"] if start else [])]
    columns += [*(f"exit {unit}" for unit in exits), "own answer", *kinds]
    rows = []
    for name in names:

        def cell(pick: Callable[[dict[str, Any]], float | None], name: str = name) -> str:
            return accuracy_over_runs([pick(run.summary["levels"].get(name, {})) for run in runs])

        row = [_level_name(name, runs)]
        row += [cell(lambda level: level.get("start"))] if start else []
        row += [
            cell(lambda level, unit=unit: level.get("exits", {}).get(unit, {}).get("accuracy"))  # type: ignore[misc]
            for unit in exits
        ]
        row += [cell(lambda level, key=key: level.get(key)) for key in ("accuracy", *kinds)]  # type: ignore[misc]
        rows.append(row)
    return Table("Accuracy of each level and exit", columns, rows, _notes_on_levels(kinds))


def groups_table(groups: Sequence[Group]) -> Table:
    """Return the scores of all groups, one below the other."""
    runs = [run for group in groups for run in group.runs]
    scores = ["mean", "worst", *_all([run.of_systems for run in runs])]
    scores += _all([run.kinds for run in runs])
    levels = _all([run.levels for run in runs])
    rows = []
    for group in groups:
        cells = [
            accuracy_over_runs([run.summary.get(score) for run in group.runs]) for score in scores
        ]
        cells += [
            accuracy_over_runs(
                [run.summary["levels"].get(level, {}).get("accuracy") for run in group.runs]
            )
            for level in levels
        ]
        rows.append([group.name, str(len(group.runs)), *cells])
    columns = ["settings", "runs", *scores, *(f"level {level}" for level in levels)]
    notes = ["The mean over a group's runs, which differ in their seed; from the lowest run to the "
             "highest in brackets."]  # fmt: skip
    return Table("Accuracy of each group", columns, rows, notes)


def differences_table(groups: Sequence[Group]) -> Table | None:
    """Return the settings in which groups differ; None where there are none."""
    configs = [settings(group.runs[0].config) for group in groups]
    keys = differences(configs)
    if not keys:
        return None
    rows = [[key, *(config.get(key, ABSENT) for config in configs)] for key in keys]
    return Table("Settings that differ", ["setting", *(group.name for group in groups)], rows)


def _level_name(name: str, runs: Sequence[RunData]) -> str:
    lack = runs[0].summary["levels"].get(name, {}).get("lack")
    return f"{name} ({lack})" if lack else name


def _notes_on_levels(kinds: Sequence[str]) -> list[str]:
    meant = {
        "local": "local: each client's own level on its own test part, mean over the level's "
        "clients.",
        "global": "global: the same of the full model.",
        "personal": "personal: what each client has trained on its own test part, before it is "
        "averaged; attackers are left out.",
        "validation": "validation: as local, on the clients' validation parts.",
    }
    notes = ["Exits are named by the unit that they follow; tested on the server's test set."]
    return [*notes, *(meant[kind] for kind in kinds if kind in meant)]


def _all(lists: Sequence[Sequence[str]]) -> list[str]:
    """Return all names of several lists: numbers in order, else as they come."""
    names = list(dict.fromkeys(name for each in lists for name in each))
    return sorted(names, key=by_number) if any(name.isdecimal() for name in names) else names
