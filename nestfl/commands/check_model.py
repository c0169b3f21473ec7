"""`nestfl check-model`: every property of slicing on a user's own networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import yaml
from rich.console import Console
from rich.table import Table

import plugins
from models import Task, family
from server_app.config.typed import choose_from
from strategies.checking import CHECKS, Finding, failed, findings


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
        with console.status(f"{name}: {len(CHECKS)} checks"):
            found = list(findings(task, lambda error: plugins.place_of(error, plugin)))
        show(name, found, console)
        lacks |= failed(found)
    return int(lacks)


def show(model: str, found: Sequence[Finding], console: Console) -> None:
    """Print a line for each property; what to change is told below, in full."""
    table = Table("property", "", title=model)
    for each in found:
        result = "not checked" if not each.checked else "FAILED" if each.wrong else "ok"
        table.add_row(each.name, result, style="red" if each.wrong else None)
    console.print(table)
    for each in found:
        if each.wrong:
            console.out(f"{model}: {each.name}: {each.wrong}", highlight=False)


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
