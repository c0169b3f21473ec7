"""`nestfl check-model`: every property of slicing on a user's own networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import yaml
from rich.console import Console

import plugins
from models import Task, family
from server_app.config.typed import choose_from
from strategies.network_checks import CHECKS, Finding, failed, findings


def check(place: str, model: str | None, options: Sequence[str], shape: Mapping[str, int]) -> int:
    """Check the networks of a plugin, show what was found, and return the exit code."""
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
    """Print a line for a property, and below it what to change."""
    result = "not checked" if not found.checked else "FAILED" if found.wrong else "ok"
    style = "red" if found.wrong else None
    console.print(f"  {result:<12}{found.name}", style=style, highlight=False)
    if found.wrong:
        console.out(f"    {found.wrong}", highlight=False)


def _task(model: str, options: Sequence[str], shape: Mapping[str, int]) -> Task:
    """Return the network with its options, as typed."""
    values = {}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals or key not in family(model).options:
            known = family(model).options
            raise ValueError(f"no option {option!r} of {model}; {choose_from(key, known)}")
        values[key] = yaml.safe_load(value)
    return Task(model, options=tuple(sorted(values.items())), **shape)
