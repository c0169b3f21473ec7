"""Numbers on the command line: each option refuses values outside its range."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from nestfl.commands import app
from nestfl.commands.shared_options import InRange, NotEmpty

NUMBERS = (click.types.IntParamType, click.types.FloatParamType)
LISTS = {"plan": ("--ratios", "--budgets", "--splits")}
"""Options with several numbers in a text."""
WITHOUT = ("plan", "data", "run", "variance", "compare", "fingerprint")
"""Commands that take no argument."""
BAD = ("nan", "inf", "-inf", str(10**30), "-1")


def options() -> Iterator[tuple[str, click.Option]]:
    for name, command in app.commands.items():
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                yield name, parameter


NUMERIC = [
    (name, option)
    for name, option in options()
    if isinstance(option.type, (InRange, *NUMBERS)) and not option.is_flag and not option.count
]


def test_all_numeric_options_are_of_the_shared_type() -> None:
    assert len(NUMERIC) > 25
    plain = [option.opts for _, option in NUMERIC if not isinstance(option.type, InRange)]
    assert plain == []


@pytest.mark.parametrize(
    ("name", "option"), NUMERIC, ids=[f"{name} {option.opts[0]}" for name, option in NUMERIC]
)
def test_an_option_refuses_numbers_beyond_its_range(name: str, option: click.Option) -> None:
    for bad in BAD:
        given = [*([] if name in WITHOUT else ["there"]), f"{option.opts[0]}={bad}"]
        result = CliRunner().invoke(app, [name, *given])
        assert result.exit_code == 2, (bad, result.output)
        assert result.stderr.startswith(f"nestfl {name}: {option.opts[0]} ")
        assert ": expected " in result.stderr
        assert result.stderr.count("\n") == 1
        assert len(result.stderr) < 200


@pytest.mark.parametrize(
    ("name", "option", "bad"),
    [(name, each, bad) for name in ("plan",) for each in LISTS[name] for bad in BAD],
)
def test_lists_refuse_them_too(name: str, option: str, bad: str) -> None:
    pair = f"{bad}:1" if option == "--splits" else bad
    for number in (pair, f"{pair},1"):
        result = CliRunner().invoke(app, [name, "--no-latency", f"{option}={number}"])
        assert result.exit_code == 2, result.output
        assert result.stderr.startswith(f"nestfl {name}: {option}"), result.stderr
        assert result.stderr.count("\n") == 1


def test_an_empty_path_is_not_the_working_directory() -> None:
    paths = [(name, option) for name, option in options() if isinstance(option.type, click.Path)]
    assert all(isinstance(option.type, NotEmpty) for _, option in paths)
    for name, option in paths:
        given = [*([] if name in WITHOUT else ["there"]), f"{option.opts[0]}="]
        result = CliRunner().invoke(app, [name, *given])
        assert result.exit_code == 2, (name, option.opts)
        assert result.stderr == f"nestfl {name}: {option.opts[0]} is empty: expected a path\n"


def test_a_comparison_has_a_bounded_number_of_runs() -> None:
    for given, told in (
        (["seed=range(0,99999)"], "seed lists more than 1,000 values"),
        (["seed=range(0,1000)", "rounds=1,2"], "2,000 combinations of seed, rounds"),
    ):
        result = CliRunner().invoke(app, ["compare", *given])
        assert result.exit_code == 2
        assert result.stderr.startswith(f"nestfl compare: {told}: expected 1,000 runs at most")
