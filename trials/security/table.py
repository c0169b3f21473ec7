"""Formats the tables of attacks, and of each other request with its answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from trials.security.case import WHAT, WHO, Findings, Found

MISSING = Found(None, "")


def cells(attacker: str, found: Findings) -> str:
    """Return the rows of the goals that each attacker has."""
    rows = [_row(WHO[attacker], what, str(found.get(what, MISSING))) for what in WHAT]
    return "\n".join([_row("who", "what", "answer"), _rule(3), *rows])


def requests(found: Findings) -> str:
    """Return the rows of the other requests; nothing where there are none."""
    rows = [_row(name, str(answer)) for name, answer in found.items() if name not in WHAT]
    return "\n".join([_row("request", "answer"), _rule(2), *rows]) if rows else ""


def update_markdown(page: Path, outcomes: Mapping[str, Findings]) -> None:
    """Write the tables between the page's marks; attackers that did not run keep their rows."""
    text = page.read_text(encoding="utf-8")
    for attacker, found in outcomes.items():
        for kind, table in (("cells", cells(attacker, found)), ("requests", requests(found))):
            if table:
                text = _put(text, f"{attacker} {kind}", table)
    page.write_text(text, encoding="utf-8")


def _put(text: str, mark: str, table: str) -> str:
    begin, end = f"<!-- {mark} -->", f"<!-- /{mark} -->"
    pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    assert pattern.search(text), f"the page has no mark {begin}"
    return pattern.sub(lambda _: f"{begin}\n{table}\n{end}", text)


def _row(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _rule(columns: int) -> str:
    return "|" + " --- |" * columns
