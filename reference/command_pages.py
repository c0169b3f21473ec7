"""Makes the page of all commands: their purpose, their options, and examples."""

from __future__ import annotations

import re
from inspect import cleandoc

import click

from reference.source import find
from reference.tables import block, cell, code, table

PAGE = "reference/commands.md"
BESIDE = {
    "nestfl-superlink": "nestfl.guarded.superlink",
    "nestfl-supernode": "nestfl.guarded.supernode",
}
"""Flower's commands with added locks; they take the options of Flower's own."""


def command_pages() -> dict[str, str]:
    """Return the Markdown of the page, by its place in the site."""
    from nestfl.commands import app

    parent = click.Context(app, info_name="nestfl", **app.context_settings)
    parts = ["# Commands", f"{app.help} `nestfl COMMAND --help` says what is here, too."]
    for name in sorted(app.commands):
        parts += _command(name, app.commands[name], parent)
    for name, module in BESIDE.items():
        docstring = find(module).docstring
        assert docstring is not None
        parts += [f"## {name}", docstring.value]
    return {PAGE: "\n\n".join(part for part in parts if part)}


def _command(name: str, command: click.Command, parent: click.Context) -> list[str]:
    context = click.Context(command, parent, info_name=name, **parent.command.context_settings)
    records = [param.get_help_record(context) for param in command.get_params(context)]
    rows = [(code(taken), cell(told)) for taken, told in filter(None, records)]
    usage = command.get_usage(context).removeprefix("Usage: ")
    return [
        f"## nestfl {name}",
        cleandoc(command.help or ""),
        block(re.sub(r"\s+", " ", usage), "text"),
        table(("it takes", "what for"), rows),
        *_epilog(command.epilog or ""),
    ]


def _epilog(epilog: str) -> list[str]:
    """Return the paragraphs of a command's epilog, with its examples as shell blocks."""
    paragraphs = cleandoc(epilog.replace("\b", "")).split("\n\n")
    return [
        block(cleandoc(paragraph.removeprefix("Examples:")), "sh")
        if paragraph.startswith("Examples:")
        else paragraph
        for paragraph in paragraphs
    ]
