"""What several commands take, and how they refuse it."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import click

FILE = click.Path(path_type=Path)
COUNT = click.IntRange(min=1)


def refuse(command: str, error: Exception) -> NoReturn:
    """Say what is wrong in one line, and end with 2."""
    click.echo(f"nestfl {command}: {error}", err=True)
    raise SystemExit(2)
