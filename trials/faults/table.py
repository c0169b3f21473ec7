"""Formats the table of faults for a terminal and for a Markdown page."""

from __future__ import annotations

import re
from collections.abc import Mapping
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from trials.faults.case import FAULTS, Outcome

COLUMNS = ("fault", "what the user saw", "lost", "verdict")
BEGIN, END = "<!-- faults -->", "<!-- /faults -->"


def as_table(outcomes: Mapping[str, Outcome]) -> str:
    table = Table(*COLUMNS, show_lines=True)
    for name, outcome in outcomes.items():
        row = (FAULTS[name].says, outcome.saw, outcome.lost, outcome.verdict)
        table.add_row(*(Text(cell) for cell in row))
    text = StringIO()
    Console(file=text, width=150).print(table)
    return text.getvalue()


def update_markdown(page: Path, outcomes: Mapping[str, Outcome]) -> None:
    """Write the rows between the page's marks; faults that did not run keep their rows."""
    text = page.read_text(encoding="utf-8")
    before, old, after = re.split(f"{re.escape(BEGIN)}|{re.escape(END)}", text)
    kept = {line.split(" | ")[0]: line for line in old.splitlines() if line.startswith("| ")}
    rows = [f"| {' | '.join(COLUMNS)} |", "|" + " --- |" * len(COLUMNS)]
    for name, fault in FAULTS.items():
        if name in outcomes:
            rows.append(_row(fault.says, outcomes[name]))
        elif (old_row := kept.get(f"| {_plain(fault.says)}")) is not None:
            rows.append(old_row)
    page.write_text(f"{before}{BEGIN}\n{chr(10).join(rows)}\n{END}{after}", encoding="utf-8")


def _row(says: str, outcome: Outcome) -> str:
    saw = f"`{outcome.saw.replace('`', chr(39))}`" if outcome.saw else ""
    cells = (_plain(says), saw.replace("|", "\\|"), _plain(outcome.lost), _plain(outcome.verdict))
    return f"| {' | '.join(cells)} |"


def _plain(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
