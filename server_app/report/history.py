"""The course of runs: starts, ends, settings that differ, and refused, failed or late clients."""

from __future__ import annotations

import math
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from server_app.record.files import REPORT_FILE
from server_app.record.fleet_record import Start
from server_app.record.metrics import RoundMetrics
from server_app.report.amounts import counted, listed, percent
from server_app.report.blocks import Block, Code, Figures, Fold, Table, Text
from server_app.report.charts import Figure, Stack, stacks_chart
from server_app.report.grouping import ABSENT, Group, differences, settings
from server_app.report.run_data import RunData

LATE = "late"  # reason of clients that did not answer before a round's deadline
FAULTS = ("refused", "failed")
MOST_BARS, MOST_ROWS = 100, 100  # of the chart of replies, and of a table over all runs
LONGEST = 160  # letters of a problem that are shown
MOST_CONFIGS = 24  # configs that are shown whole


def subtitle(groups: Sequence[Group]) -> str:
    """Return the common settings of the runs, in short."""
    runs = [run for group in groups for run in group.runs]
    parts = []
    for key in ("strategy", "model", "dataset"):
        chosen = [run.config.get(key) for run in runs]
        names = {str(c.get("name", "?")) if isinstance(c, dict) else "?" for c in chosen}
        parts.append(f"{key} {' / '.join(sorted(names))}")
    parts.append(_counts([run.rounds for run in runs], "round"))
    if clients := [len(run.fleet["clients"]) for run in runs if run.fleet]:
        parts.append(_counts(clients, "client"))
    seeds = sorted({run.seed for run in runs})
    parts.append(f"seed{'s' if len(seeds) > 1 else ''} {', '.join(seeds)}")
    if any(run.at_best for run in runs):
        parts.append("scores after each run's best round by validation data, not its last")
    return " · ".join(parts)


def _counts(numbers: Sequence[int], thing: str) -> str:
    *others, most = sorted(set(numbers))
    return " / ".join([*map(str, others), counted(most, thing)])


def warnings(runs: Sequence[RunData]) -> list[str]:
    """Say which runs have not ended well, or were made by other code than the others."""
    found = []
    for run in runs:
        if not run.finished:
            done = f"{run.rounds} of {run.config.get('rounds', '?')} rounds are recorded"
            why = f"It failed: {run.reason}" if run.reason else "It is still going, or was stopped"
            found.append(f"{run.name} has not finished: {done}. {why}.")
    codes = {run.fleet["code"] for run in runs if run.fleet}
    if len(codes) > 1:
        found.append(
            f"The runs were made by different versions of the code: {', '.join(sorted(codes))}."
        )
    return found


def origin_blocks(groups: Sequence[Group], file: Path, runs: int) -> list[Block]:
    """Return the runs' starts, paths and settings.

    `runs` is their number with those that have no round; `file` is the report's.
    """
    blocks = [block for group in groups for block in _starts(group, alone=len(groups) == 1)]
    if runs > 1:
        blocks.append(runs_table(groups, file))
    blocks += differences_table(groups)
    configs = [(group.name, group.runs[0].config_text) for group in groups][:MOST_CONFIGS]
    return blocks + [
        Fold(f"Resolved config{f' of {name}' * (len(configs) > 1)}", [Code(text)])
        for name, text in configs
    ]


def _starts(group: Group, alone: bool) -> Iterator[Block]:
    """Yield the start of a group's first run; for a single group also its resumptions."""
    fleet = group.runs[0].fleet
    if fleet is None:
        return
    starts: list[tuple[str, Start]] = [
        ("The command that repeats it" if alone else group.name, fleet)
    ]
    if alone:
        starts += [(f"Resumed after round {each['after']}", each) for each in fleet["resumed"]]
    for name, start in starts:
        versions = ", ".join(f"{name} {version}" for name, version in start["versions"].items())
        yield Text(name, tag="h3")
        if start["command"]:
            yield Code(start["command"], command=True)
        yield Text(f"Started {start['started']}, code {start['code']}, {versions}.", "faint")


def runs_table(groups: Sequence[Group], file: Path) -> Table:
    """Return all runs, and where they are from the report's folder."""
    at_best = any(run.at_best for group in groups for run in group.runs)
    rows = []
    for group in groups:
        for run in group.runs:
            folder = os.path.relpath(run.directory, file.resolve().parent)
            own = " (has a report of its own)" * (run.directory / REPORT_FILE).is_file()
            rows.append({
                "settings": group.name,
                "seed": run.seed,
                "rounds": str(run.rounds),
                **({"best round": str(run.best_round)} if at_best else {}),
                "mean": percent(run.value("mean")),
                "worst": percent(run.value("worst")),
                "code": run.fleet["code"] if run.fleet else ABSENT,
                "folder": f"{folder}{own}",
            })  # fmt: skip
    return Table.of(rows, "Runs", style="text")[0]


def differences_table(groups: Sequence[Group]) -> list[Table]:
    """Return the settings in which groups differ."""
    configs = {group.name: settings(group.runs[0].config) for group in groups}
    rows = [
        {"setting": key, **{name: config.get(key, ABSENT) for name, config in configs.items()}}
        for key in differences(list(configs.values()))
    ]
    return Table.of(rows, "Settings that differ", style="text")


def fault_blocks(groups: Sequence[Group], runs: int) -> list[Block]:
    """Return the numbers of accepted and missing replies; for a single run also by round."""
    chart = faults_figure(groups[0].runs[0]) if runs == 1 else []
    figures = [Figures(chart)] if chart else []
    return [Text(faults_sentence(groups)), *figures, *faults_tables(groups)]


def faults_sentence(groups: Sequence[Group]) -> str:
    """Return a sentence with the numbers of accepted and missing replies."""
    runs = [run.totals["clients"] for group in groups for run in group.runs]
    sampled, replied = (sum(run[key] for run in runs) for key in ("sampled", "replied"))
    refused, failed = (sum(sum(run[key].values()) for run in runs) for key in FAULTS)
    late = sum(run["failed"].get(LATE, 0) for run in runs)
    told = f"{replied} of {sampled} replies were taken, {refused} refused, and {failed} failed"
    told += f" ({late} of these late)." if late else "."
    forgot = sum(run.get("forgot", 0) for run in runs)
    lost = f" {counted(forgot, 'time')} a client had lost what it remembers."
    return told + lost if forgot else told


def faults_figure(run: RunData) -> list[Figure]:
    """Return the replies of each round; none where all were taken."""
    lines = [line for line in run.lines if line.get("clients")]
    if not any(_count(line, fault) for line in lines for fault in FAULTS):
        return []
    size, title = math.ceil(len(lines) / MOST_BARS), "Replies of each round"
    stacks = []
    for first in range(0, len(lines), size):  # a bar is the sum of so many rounds
        bar = lines[first : first + size]
        counts = {"taken": sum(line["clients"].get("replied", 0) for line in bar)}
        counts |= {what: sum(_count(line, what) for line in bar) for what in FAULTS}
        start, end = bar[0]["round"], bar[-1]["round"]
        rounds = f"round {start}" if start == end else f"rounds {start} to {end}"
        told = ", ".join(f"{count} {what}" for what, count in counts.items())
        stacks.append(Stack(start, end, counts, f"{rounds}: {told}"))
    legend = [(7, "taken"), (1, "refused"), (5, "failed")]  # as the page's style has them
    return [Figure(title, legend, {"rounds": stacks_chart(title, stacks)})]


def _count(line: RoundMetrics, fault: str) -> int:
    by_reason: Mapping[str, int] = dict(line["clients"]).get(fault, {})  # type: ignore[assignment]
    return sum(by_reason.values())


def faults_tables(groups: Sequence[Group]) -> list[Table]:
    """Return the faults by reason, by client and by node; no tables where there were none."""
    runs = [(group.name, run) for group in groups for run in group.runs]
    reasons, clients, nodes = [], [], []
    for name, run in runs:
        cells = {"settings": name, "seed": run.seed} if len(runs) > 1 else {}
        reasons += [cells | row for row in _by_reason(run)]
        clients += [cells | row for row in _by_client(run)]
        left_out = {
            node: why for line in run.lines for node, why in line.get("left_out", {}).items()
        }
        nodes += [cells | {"node": node, "why": why[:LONGEST]} for node, why in left_out.items()]
    tables = {"By reason": reasons, "By client": clients, "Nodes that were left out": nodes}
    return [
        table
        for heading, rows in tables.items()
        for table in Table.of(rows[:MOST_ROWS], heading, _more(len(rows) - MOST_ROWS), "text")
    ]


def _more(rows: int) -> list[str]:
    return [f"And {rows} more."] if rows > 0 else []


def _by_reason(run: RunData) -> list[dict[str, str]]:
    counts: defaultdict[tuple[str, str, str], dict[int, int]] = defaultdict(dict)
    for line in run.lines:
        for where, asked in _asked(line):
            for fault in FAULTS:
                for reason, count in asked.get(fault, {}).items():
                    counts[where, fault, reason][line["round"]] = count
    return [
        {"asked for": where, "what": fault, "reason": reason, "times": str(sum(times.values())),
         "rounds": listed(list(map(str, times)))}
        for (where, fault, reason), times in sorted(
            counts.items(), key=lambda item: -sum(item[1].values()))
    ]  # fmt: skip


def _by_client(run: RunData) -> list[dict[str, str]]:
    rounds, last = defaultdict[str, list[str]](list), dict[str, str]()
    for line in run.lines:
        for _, asked in _asked(line):
            for client, told in asked.get("problems", {}).items():
                rounds[client].append(str(line["round"]))
                last[client] = told
    return [
        {"client": client, "level": run.level_of(client),
         "times": str(len(rounds[client])), "rounds": listed(rounds[client]),
         "the last": last[client][:LONGEST]}
        for client in sorted(rounds, key=lambda client: (-len(rounds[client]), int(client)))
    ]  # fmt: skip


def _asked(line: RoundMetrics) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the requests of a round to clients, each with the counts of its answers."""
    yield "training", line.get("clients", {})
    yield from line.get("asked", {}).items()
