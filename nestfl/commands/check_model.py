"""`nestfl check-model`: checks every property of slicing on a user's own networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

import plugins
from nestfl.commands.group import app
from nestfl.commands.shared_options import SIZES, refuse

if TYPE_CHECKING:
    from rich.console import Console

    from models import Task
    from strategies.network_checks import Finding


@app.command(
    "check-model",
    epilog="""\b
    Examples:
      nestfl check-model mine.py
      nestfl check-model mine.py --model twin norm=gn
      nestfl check-model examples/distilbert.py size=4 vocabulary=100

    Ends with 1 where a network lacks a property.""",
)
@click.argument(
    "plugin",
    help="A Python file or package with networks of your own, or the name of an installed one.",
)
@click.argument(
    "options", nargs=-1, metavar="[OPTION=VALUE]...", help="Options of the network's constructor."
)
@click.option("--model", metavar="NAME", help="One of its networks; all of them if not given.")
@click.option("--classes", "num_classes", metavar="N", type=SIZES, default=10, help="Of the data.")
@click.option("--channels", "in_channels", metavar="N", type=SIZES, default=3, help="Of an image.")
@click.option("--image-size", metavar="N", type=SIZES, default=32, help="Height and width.")
@click.option("--tokens", metavar="N", type=SIZES, default=16, help="Tokens of a text.")
def check_model_command(
    plugin: str, options: tuple[str, ...], model: str | None, **shape: Any
) -> None:
    """Check every property of slicing on networks of your own, and say what to change."""
    try:
        raise SystemExit(check(plugin, model, options, shape))
    except ValueError as error:
        refuse("check-model", error)


def check(place: str, model: str | None, options: Sequence[str], shape: Mapping[str, int]) -> int:
    """Check the networks of a plugin, print the results, and return the exit code."""
    from rich.console import Console

    from server_app.config.typed import choose_from
    from strategies.network_checks import CHECKS, failed, findings

    plugin = plugins.load(place)
    offered = [name for group, name in plugin.offers if group == "model"]
    if model is not None and model not in offered:
        raise ValueError(f"unknown model {model!r}; {choose_from(model, offered)}")
    if not offered:
        raise ValueError(f"{plugin.path} registers no network: expected @register of models")
    console, lacks = Console(), False
    for name in [model] if model else offered:
        task = _task(name, options, shape)
        console.print(f"{name}: {len(CHECKS)} properties", style="bold", highlight=False)
        found = []
        for each in findings(task, lambda error: plugins.place_of(error, plugin)):
            show(each, console)
            found.append(each)
        lacks |= failed(found)
    return int(lacks)


def show(found: Finding, console: Console) -> None:
    """Print a line for a property, followed by the change that it needs."""
    result = "not checked" if not found.checked else "FAILED" if found.wrong else "ok"
    style = "red" if found.wrong else None
    console.print(f"  {result:<12}{found.name}", style=style, highlight=False)
    if found.wrong:
        console.out(f"    {found.wrong}", highlight=False)


def _task(model: str, options: Sequence[str], shape: Mapping[str, int]) -> Task:
    """Return the network with its options, as typed."""
    import yaml

    from models import Task, family
    from server_app.config.typed import choose_from

    values = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals or key not in family(model).options:
            known = family(model).options
            raise ValueError(f"no option {option!r} of {model}; {choose_from(key, known)}")
        values[key] = yaml.safe_load(value)
    return Task(model, options=tuple(sorted(values.items())), **shape)
