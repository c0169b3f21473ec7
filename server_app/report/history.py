"""Where a report's runs come from: their commands, code and versions, and how they ended."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from server_app.record.files import REPORT_FILE
from server_app.record.fleet_record import Start
from server_app.report.amounts import counted, percent
from server_app.report.grouping import ABSENT, Group
from server_app.report.run_data import RunData
from server_app.report.tables import Table


@dataclass(frozen=True)
class Origin:
    """A start of a run: the command that repeats it, and what it ran with."""

    name: str
    command: str
    facts: str


def origins(groups: Sequence[Group]) -> list[Origin]:
    """Return how each group's first run was started, and resumed."""
    found = []
    for group in groups:
        fleet = group.runs[0].fleet
        if fleet is None:
            continue
        name = "The command that repeats it" if len(groups) == 1 else group.name
        found.append(Origin(name, fleet["command"], _facts(fleet)))
        if len(groups) == 1:
            found += [
                Origin(f"Resumed after round {again['after']}", again["command"], _facts(again))
                for again in fleet["resumed"]
            ]
    return found


def _facts(start: Start) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in start["versions"].items())
    return f"Started {start['started']}, code {start['code']}, {versions}."


def runs_table(groups: Sequence[Group], file: Path) -> Table:
    """Return all runs, and where they are from the report's folder."""
    at_best = any(run.at_best for group in groups for run in group.runs)
    rows = []
    for group in groups:
        for run in group.runs:
            best = [str(run.best_round)] if at_best else []
            folder = os.path.relpath(run.directory, file.resolve().parent)
            report = " (has a report of its own)" if (run.directory / REPORT_FILE).is_file() else ""
            rows.append([group.name, run.seed, str(run.rounds), *best,
                         percent(run.summary.get("mean")), percent(run.summary.get("worst")),
                         _code(run), f"{folder}{report}"])  # fmt: skip
    columns = ["settings", "seed", "rounds", *(["best round"] if at_best else [])]
    return Table("Runs", [*columns, "mean", "worst", "code", "folder"], rows)


def _code(run: RunData) -> str:
    return run.fleet["code"] if run.fleet else ABSENT


def subtitle(groups: Sequence[Group]) -> str:
    """Say in short what the runs have in common."""
    runs = [run for group in groups for run in group.runs]
    parts = []
    for key in ("strategy", "model", "dataset"):
        names = {_chosen(run, key) for run in runs}
        parts.append(f"{key} {' / '.join(sorted(names))}")
    parts.append(_counts([run.rounds for run in runs], "round"))
    if clients := [len(run.fleet["clients"]) for run in runs if run.fleet]:
        parts.append(_counts(clients, "client"))
    seeds = sorted({run.seed for run in runs})
    parts.append(f"seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}")
    if any(run.at_best for run in runs):
        parts.append("scores after each run's best round by validation data, not its last")
    return " · ".join(parts)


def _chosen(run: RunData, key: str) -> str:
    """Return the name of what a config chooses, such as its model."""
    choice = run.config.get(key)
    return str(choice.get("name", "?")) if isinstance(choice, dict) else "?"


def _counts(numbers: Sequence[int], thing: str) -> str:
    *others, most = sorted(set(numbers))
    return " / ".join([*map(str, others), counted(most, thing)])


def warnings(runs: Sequence[RunData]) -> list[str]:
    """Say which runs have not ended well, or were made by other code than the others."""
    found = []
    for run in runs:
        if run.finished:
            continue
        asked = run.config.get("rounds", "?")
        done = f"{run.rounds} of {asked} rounds are recorded"
        why = f"It failed: {run.reason}" if run.reason else "It is still going, or was stopped"
        found.append(f"{run.name} has not finished: {done}. {why}.")
    codes = {code for run in runs if (code := _code(run)) != ABSENT}
    if len(codes) > 1:
        found.append(
            f"The runs were made by different versions of the code: {', '.join(sorted(codes))}."
        )
    return found
