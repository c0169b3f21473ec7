"""What several commands take, and how they refuse it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

import plugins

FILE = click.Path(path_type=Path)
COUNT = click.IntRange(min=1)


def refuse(command: str, error: BaseException) -> NoReturn:
    """Say what is wrong in one line, and end with 2."""
    click.echo(f"nestfl {command}: {plugins.told(error)}", err=True)
    raise SystemExit(2)


def plugin_option(
    expose: bool = False, load: bool = True
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Let a command take plugins, which are loaded before it begins unless it does that itself."""
    return click.option(
        "--plugin",
        metavar="PATH",
        multiple=True,
        expose_value=expose,
        callback=_load_plugins if load else None,
        help="A Python file or package with networks or methods of your own, or the name of an "
        "installed one; may be given several times.",
    )


def _load_plugins(
    ctx: click.Context, option: click.Parameter, places: Sequence[str]
) -> Sequence[str]:
    plugins.search_installed_too()
    try:
        for place in places:
            plugins.load(place)
    except plugins.PluginError as error:
        refuse(str(ctx.info_name), error)
    return places
