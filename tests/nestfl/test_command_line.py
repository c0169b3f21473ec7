"""`nestfl` describes itself, and refuses unknown commands and options."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from nestfl.commands import app

REPOSITORY = Path(__file__).resolve().parents[2]


def told(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, arguments, terminal_width=80)
    return result.exit_code, result.output


@pytest.mark.parametrize("command", sorted(app.commands))
def test_a_help_page_describes_everything_that_the_command_takes(command: str) -> None:
    code, page = told(command, "--help")
    assert code == 0
    assert "\\" not in page
    words = " ".join(page.split())
    parameters = app.commands[command].params
    assert parameters
    for parameter in parameters:
        assert isinstance(parameter, click.Argument | click.Option)
        assert parameter.help is not None
        assert parameter.help in words
        if isinstance(parameter, click.Option) and type(parameter.default) in (int, float, str):
            assert f"[default: {parameter.default}" in words
    assert f"Examples: nestfl {command}" in words


def test_the_module_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nestfl", "--help"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("Usage: nestfl [OPTIONS] COMMAND")


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["--rounds", "3"], "rounds=3"),
        (["--rounds=3"], "rounds=3"),
        (["model=resnet20", "--ruonds", "3"], "rounds=3"),
        (["--batch-size", "32"], "train.batch_size=32"),
        (["--train.lr", "0.1"], "train.lr=0.1"),
        (["--strategy", "heterofl"], "strategy=heterofl"),
        (["--clients", "--quiet"], "fleet.clients=..."),
    ],
)
def test_an_option_that_is_a_setting_is_answered_with_the_setting(
    arguments: list[str], meant: str
) -> None:
    code, answer = told("run", *arguments)
    assert code == 2
    assert answer.splitlines()[-1].endswith(f"given as key=value. Did you mean {meant}?")


@pytest.mark.parametrize(
    ("option", "answer"),
    [("--node", "Did you mean '--nodes'?"), ("--xyzzy", "No such option '--xyzzy'.")],
)
def test_other_unknown_options_are_no_settings(option: str, answer: str) -> None:
    code, output = told("run", option, "3")
    assert code == 2
    assert output.splitlines()[-1].endswith(answer)
