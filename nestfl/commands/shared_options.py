"""Defines options that several commands share, and their one-line refusals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

import plugins
from data.ranges import CLIENTS, SAMPLES, SHARE, SIZE, THREADS, Range, brief
from protocol.printable import printable


def _refuse_value(param: click.Parameter | None, ctx: click.Context | None, told: str) -> NoReturn:
    """Report in one line an invalid value of an option or an argument."""
    name = (
        ""
        if param is None
        else param.opts[0]
        if param.param_type_name == "option"
        else (param.human_readable_name)
    )
    refuse("" if ctx is None else str(ctx.info_name), ValueError(f"{name} {told}"))


class NotEmpty(click.Path):
    """A path that is not empty: an empty one would be the working directory."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not str(value).strip() and not isinstance(value, Path):
            _refuse_value(param, ctx, "is empty: expected a path")
        return super().convert(value, param, ctx)


class InRange(click.ParamType[Any]):
    """A number within a range: finite, and neither too small nor too large."""

    def __init__(self, range: Range, whole: bool) -> None:
        self.range, self.whole = range, whole
        self.name = "integer range" if whole else "float range"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            number = int(value) if self.whole else float(value)
        except (ValueError, OverflowError):
            kind = "a whole number" if self.whole else "a number"
            _refuse_value(param, ctx, f"{str(value)[:40]}: expected {kind}, {self.range}")
        if number not in self.range:
            _refuse_value(param, ctx, f"{brief(number)}: expected {self.range}")
        return number


def whole(range: Range) -> InRange:
    """Return the type of an option that takes a whole number."""
    return InRange(range, whole=True)


def number(range: Range) -> InRange:
    """Return the type of an option that takes any number."""
    return InRange(range, whole=False)


FILE = NotEmpty()
COUNT = whole(SAMPLES)
CLIENT_COUNT = whole(CLIENTS)
THREAD_COUNT = whole(THREADS)
SIZES = whole(SIZE)
A_SHARE = number(SHARE)
POSITIVE = number(Range(0, 10**9, above=True))
RATE = number(Range(0, 10**9))
LEVEL = whole(Range(1, 100))
LONGEST_ERROR = 4000
"""Most characters of an error that are printed."""


def refuse(command: str, error: BaseException) -> NoReturn:
    """Report an error in one line and exit with 2; file names in it are made printable."""
    click.echo(f"nestfl {command}: {printable(plugins.told(error), LONGEST_ERROR)}", err=True)
    raise SystemExit(2)


def plugin_option(
    expose: bool = False, load: bool = True
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add the option for plugins; they are loaded first, unless the command does that itself."""
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
