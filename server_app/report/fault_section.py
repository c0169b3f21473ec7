"""What went wrong: replies that were refused, clients that failed or were late, nodes left out."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from server_app.record.metrics import RoundMetrics
from server_app.report.amounts import counted, listed
from server_app.report.bars import Stack, stacks_chart
from server_app.report.grouping import Group
from server_app.report.run_data import RunData
from server_app.report.tables import Table

LATE = "late"
"""The reason of clients that did not answer before a round's deadline."""
MOST_BARS = 100
MOST_ROWS = 100
"""Of a table, over all runs."""
LONGEST = 160
"""Letters of a problem that are shown."""


@dataclass
class _Troubles:
    rounds: list[int] = field(default_factory=list)
    text: str = ""


def faults_sentence(groups: Sequence[Group]) -> str:
    """Say how many replies were taken, and how many were not."""
    runs = [run.totals["clients"] for group in groups for run in group.runs]
    sampled, replied = (sum(run[key] for run in runs) for key in ("sampled", "replied"))
    refused, failed = (sum(sum(run[key].values()) for run in runs) for key in ("refused", "failed"))
    late = sum(run["failed"].get(LATE, 0) for run in runs)
    text = f"{replied} of {sampled} replies were taken, {refused} refused, and {failed} failed"
    text += f" ({late} of these late)." if late else "."
    forgot = sum(run.get("forgot", 0) for run in runs)
    lost = f" {counted(forgot, 'time')} a client had lost what it remembers."
    return text + lost if forgot else text


def faults_chart(run: RunData) -> Markup | None:
    """Return the replies of each round; None where all were taken."""
    lines = [line for line in run.lines if line.get("clients")]
    if not any(_count(line, "refused") or _count(line, "failed") for line in lines):
        return None
    size = math.ceil(len(lines) / MOST_BARS)  # rounds that a bar is the sum of
    bars = [lines[first : first + size] for first in range(0, len(lines), size)]
    return stacks_chart(
        [_stack(bar) for bar in bars], ("taken", "refused", "failed"), "Replies of each round"
    )


def _stack(lines: Sequence[RoundMetrics]) -> Stack:
    replied = sum(line["clients"].get("replied", 0) for line in lines)
    refused, failed = (
        sum(_count(line, fault) for line in lines) for fault in ("refused", "failed")
    )
    first, last = lines[0]["round"], lines[-1]["round"]
    rounds = f"round {first}" if first == last else f"rounds {first} to {last}"
    text = f"{rounds}: {replied} taken, {refused} refused, {failed} failed"
    return Stack(first, last, (replied, refused, failed), text)


def faults_tables(groups: Sequence[Group]) -> list[Table]:
    """Return what went wrong by reason, by client and by node; nothing where nothing did."""
    runs = [(group.name, run) for group in groups for run in group.runs]
    several = len(runs) > 1
    tables = [_by_reason(runs, several), _by_client(runs, several), _left_out(runs, several)]
    return [table for table in tables if table.rows]


def _by_reason(runs: Sequence[tuple[str, RunData]], several: bool) -> Table:
    rows = []
    for name, run in runs:
        counts: Counter[tuple[str, str, str]] = Counter()
        rounds: defaultdict[tuple[str, str, str], list[int]] = defaultdict(list)
        for line in run.lines:
            for where, asked in (("training", line.get("clients", {})), *_asked(line)):
                for fault in ("refused", "failed"):
                    for reason, count in asked.get(fault, {}).items():
                        counts[where, fault, reason] += count
                        rounds[where, fault, reason].append(line["round"])
        rows += [
            [*_run_cells(name, run, several), where, fault, reason, str(count),
             listed(list(map(str, rounds[where, fault, reason])))]
            for (where, fault, reason), count in counts.most_common()
        ]  # fmt: skip
    columns = [*_run_columns(several), "asked for", "what", "reason", "times", "rounds"]
    return _cut("By reason", columns, rows)


def _by_client(runs: Sequence[tuple[str, RunData]], several: bool) -> Table:
    rows = []
    for name, run in runs:
        troubles: defaultdict[str, _Troubles] = defaultdict(_Troubles)
        for line in run.lines:
            for _, asked in (("training", line.get("clients", {})), *_asked(line)):
                for client, text in asked.get("problems", {}).items():
                    troubles[client].rounds.append(line["round"])
                    troubles[client].text = text
        ordered = sorted(troubles, key=lambda c: (-len(troubles[c].rounds), int(c)))
        rows += [
            [*_run_cells(name, run, several), client, _level(run, client),
             str(len(troubles[client].rounds)),
             listed(list(map(str, troubles[client].rounds))),
             troubles[client].text[:LONGEST]]
            for client in ordered
        ]  # fmt: skip
    columns = [*_run_columns(several), "client", "level", "times", "rounds", "the last"]
    return _cut("By client", columns, rows)


def _left_out(runs: Sequence[tuple[str, RunData]], several: bool) -> Table:
    rows = []
    for name, run in runs:
        nodes = {node: why for line in run.lines for node, why in line.get("left_out", {}).items()}
        cells = _run_cells(name, run, several)
        rows += [[*cells, node, why[:LONGEST]] for node, why in nodes.items()]
    return _cut("Nodes that were left out", [*_run_columns(several), "node", "why"], rows)


def _cut(heading: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Return a table of the first rows, which says how many more there are."""
    more = len(rows) - MOST_ROWS
    return Table(heading, columns, rows[:MOST_ROWS], [f"And {more} more."] if more > 0 else [])


def _asked(line: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    return list(line.get("asked", {}).items())


def _count(line: Mapping[str, Any], fault: str) -> int:
    return sum(line["clients"].get(fault, {}).values())


def _level(run: RunData, client: str) -> str:
    clients = run.fleet["clients"] if run.fleet else {}
    return str(clients[client]["level"]) if client in clients else ""


def _run_columns(several: bool) -> list[str]:
    return ["settings", "seed"] if several else []


def _run_cells(name: str, run: RunData, several: bool) -> list[str]:
    return [name, run.seed] if several else []
