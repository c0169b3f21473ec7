"""Every command and every option of `nestfl` is in the page of commands."""

from __future__ import annotations

import pytest

from nestfl.commands import app
from reference.command_pages import command_pages

(PAGE,) = command_pages().values()
SECTIONS = {part.partition("\n")[0]: part for part in PAGE.split("\n## ")[1:]}


@pytest.mark.parametrize("name", sorted(app.commands))
def test_a_command_is_there_with_its_help_and_all_that_it_takes(name: str) -> None:
    command, section = app.commands[name], SECTIONS[f"nestfl {name}"]
    assert (command.help or "").split("\n")[0] in section
    taken = [name for param in command.params for name in (*param.opts, *param.secondary_opts)]
    options = [name for name in taken if name.startswith("-")]
    assert [option for option in options if option not in section] == []
    assert section.count("\n| `") == len(command.params) + 1, "a row for each, and for --help"


@pytest.mark.parametrize("name", sorted(app.commands))
def test_a_commands_examples_are_there_as_they_are_typed(name: str) -> None:
    examples = [line.strip() for line in (app.commands[name].epilog or "").splitlines()
                if line.strip().startswith("nestfl ")]  # fmt: skip
    shell = SECTIONS[f"nestfl {name}"].partition("```sh\n")[2].partition("```")[0].splitlines()
    assert [example for example in examples if example not in shell] == []


@pytest.mark.parametrize("name", ["nestfl-superlink", "nestfl-supernode"])
def test_what_stands_in_for_flowers_commands_is_there(name: str) -> None:
    assert f"{name} " in SECTIONS[name]
