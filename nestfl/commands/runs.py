"""`nestfl runs`: prints a table of all runs below a folder."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nestfl.commands.group import app
from nestfl.commands.shared_options import FILE, refuse

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from nestfl.commands.run_list import RunList
    from server_app.record.run_entry import RunEntry


@app.command(
    "runs",
    epilog="""\b
    Examples:
      nestfl runs
      nestfl runs runs/compare-seed-strategy-1f2e3d4c --csv""",
)
@click.argument(
    "folder", type=FILE, default="runs", help="Runs below it are shown, those of comparisons too."
)
@click.option("--json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--csv", is_flag=True, help="Print CSV instead of a table.")
def runs_command(folder: Path, json: bool, csv: bool) -> None:
    """List all runs below a folder: how far they came, how good they are, how they ended."""
    from nestfl.commands.run_list import RunList

    try:
        if json and csv:
            raise ValueError("--json and --csv are both given: expected one of them")
        found = RunList.below(folder)
    except (ValueError, OSError) as error:
        refuse("runs", error)
    if json or csv:
        click.echo(as_json(found) if json else as_csv(found))
    else:
        show(found)
    for problem in problems(found):
        click.echo(f"nestfl runs: {problem}", err=True)


FIELDS = ("run", "method", "model", "data", "seed", "rounds", "of", "worst", "mean", "started",
          "ended", "note")  # fmt: skip
"""Fields of a run in JSON and CSV: those of `RunEntry`, and `run` for its directory."""
COLOURS = {"finished": "green", "failed": "red", "running": "cyan", "stopped": "yellow",
           "damaged": "magenta"}  # fmt: skip
LONGEST_NOTE = 300
"""Most characters of a run's problem."""
MOST_NAMED = 8
"""Most folders without runs that are named."""
ROOM = 10_000
"""Columns that are enough for any table."""
WHEN, WHEN_IN_SHORT = "%Y-%m-%d %H:%M", "%m-%d %H:%M"


def as_json(found: RunList) -> str:
    """Return the runs as a JSON list."""
    return json.dumps([_record(each) for each in found.entries], indent=2)


def as_csv(found: RunList) -> str:
    """Return the runs as CSV, with a header."""
    text = io.StringIO()
    writer = csv.DictWriter(text, FIELDS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(_record, found.entries))
    return text.getvalue().rstrip("\n")


def _record(entry: RunEntry) -> dict[str, Any]:
    own = {"run": str(entry.directory), "started": entry.started.isoformat()}
    return {name: own.get(name) or getattr(entry, name) for name in FIELDS}


def problems(found: RunList) -> Iterator[str]:
    """Yield a line for each problem, and one for folders without runs."""
    from protocol.printable import printable

    for entry in found.entries:
        if entry.note:
            told = printable(entry.note, LONGEST_NOTE)
            yield f"{printable(found.name(entry))} {_is(entry.ended)}: {told}"
    for folder, why in found.unreadable.items():
        yield f"{printable(folder)} cannot be read: {why}"
    if found.without:
        shown = ", ".join(map(printable, found.without[:MOST_NAMED]))
        more = len(found.without) - MOST_NAMED
        yield f"no run in {shown}{f' and {more} more' if more > 0 else ''}"


def _is(ended: str) -> str:
    return f"is {ended}" if ended == "damaged" else ended


def show(found: RunList, console: Console | None = None) -> None:
    """Print the table: a column for each field; in a narrow terminal some fields go below names.

    A file or a pipe counts as wide, unless COLUMNS says otherwise.
    """
    from rich.console import Console

    console = console or Console()
    if not found.entries:
        console.print(f"no runs below {found.folder}", markup=False, highlight=False)
        return
    plain = not console.is_terminal
    table = _wide(found, plain)
    needed = console.measure(table, options=console.options.update(width=ROOM)).maximum
    if plain and not os.environ.get("COLUMNS"):
        console = Console(file=console.file, width=needed, color_system=None)
    console.print(table if needed <= console.width else _narrow(found, plain))


def _wide(found: RunList, plain: bool) -> Table:
    table = _table(plain, ("run", "method", "model", "data"))
    for entry in found.entries:
        choices = (entry.method, entry.model, entry.data)
        table.add_row(_text(found.name(entry)), *map(_text, choices), *_facts(entry, WHEN))
    return table


def _narrow(found: RunList, plain: bool) -> Table:
    from rich.text import Text

    from protocol.printable import printable

    table = _table(plain, ("run",))
    for entry in found.entries:
        choices = " ".join(map(printable, (entry.method, entry.model, entry.data)))
        name = Text.assemble(_text(found.name(entry)), "\n", (f"  {choices}", "dim"))
        table.add_row(name, *_facts(entry, WHEN_IN_SHORT))
    return table


def _table(plain: bool, names: tuple[str, ...]) -> Table:
    from rich import box
    from rich.table import Table

    if plain:
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    else:
        table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=0)  # frame separates columns
    for name in names:
        table.add_column(name, overflow="fold")
    for name in ("rounds", "worst", "mean"):
        table.add_column(name, justify="right", no_wrap=True)
    for name in ("when", "ended"):
        table.add_column(name, no_wrap=True)
    return table


def _facts(entry: RunEntry, when: str) -> list[Text]:
    from rich.text import Text

    started = entry.started.astimezone().strftime(when)
    asked = "?" if entry.of is None else entry.of
    facts = (f"{entry.rounds}/{asked}", _percent(entry.worst), _percent(entry.mean), started)
    return [*map(Text, facts), Text(entry.ended, style=COLOURS[entry.ended])]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"


def _text(value: str) -> Text:
    from rich.text import Text

    from protocol.printable import printable

    return Text(printable(value))
