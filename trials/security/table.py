"""Formats the tables of attacks, before and after, and of each other request with its answers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from trials.security.case import WHAT, WHO, Findings, Found

Outcomes = Mapping[str, Mapping[str, Findings]]
"""Results by attacker, and then by deployment."""
SITES = ("before", "after")
MISSING = Found(None, "")


def cells(attacker: str, found: Mapping[str, Findings]) -> str:
    """Return the rows of an attacker in the table."""
    rows = []
    for what in WHAT:
        answers = [str(found.get(site, {}).get(what, MISSING)) for site in SITES]
        rows.append(_row(WHO[attacker], what, *answers))
    return "\n".join([_row("who", "what", *SITES), _rule(4), *rows])


def requests(found: Mapping[str, Findings]) -> str:
    """Return the rows of an attacker's other requests."""
    names = dict.fromkeys(name for site in SITES for name in found.get(site, {}))
    rows = [
        _row(name, *(str(found.get(site, {}).get(name, MISSING)) for site in SITES))
        for name in names
        if name not in WHAT
    ]
    return "\n".join([_row("request", *SITES), _rule(3), *rows]) if rows else ""


def update_markdown(page: Path, outcomes: Outcomes) -> None:
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
