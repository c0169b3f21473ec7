"""Expected errors are one line of Flower's log; unexpected ones keep their traceback."""

from __future__ import annotations

import logging
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest

import plugins
from client_app.offers import NotOfferedError
from data.catalog import UnknownClassError
from models.slicing import SliceError
from protocol import failures
from strategies.federation import FederationError
from tests.support.own_code import NETWORK, saved


@pytest.fixture
def logged() -> Callable[[Exception], str]:
    """Return a function that returns Flower's log of an error that an app has raised."""
    log, written = logging.Logger("of the test"), StringIO()
    log.addHandler(logging.StreamHandler(written))
    for _ in range(2):  # as where both apps are in one process
        failures.shorten(log)

    def say(error: Exception) -> str:
        try:
            raise error
        except Exception as raised:
            log.error("%s raised an exception", "ServerApp", exc_info=raised)
        return written.getvalue()

    return say


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (FederationError("no 100 % of\nit"), "FederationError: no 100 % of it"),
        (NotOfferedError("\x1b[2Jno path"), "NotOfferedError: no path"),
        (
            caused(NotOfferedError("it cannot"), UnknownClassError("'cat' is unknown", "3 of 5")),
            "NotOfferedError: it cannot (UnknownClassError: 'cat' is unknown)",
        ),
        (
            caused(NotOfferedError("it cannot"), FileNotFoundError(2, "No such file", "a.png")),
            "NotOfferedError: it cannot (FileNotFoundError: [Errno 2] No such file: 'a.png')",
        ),
        (
            caused(FederationError("y: no such file"), OSError("no such\nfile")),
            "FederationError: y: no such file",
        ),
    ],
)  # fmt: skip
def test_expected_errors_are_one_line_with_causes_that_say_more(
    error: Exception, line: str, logged: Callable[[Exception], str]
) -> None:
    assert logged(error) == f"ServerApp raised an exception: {line}\n"


@pytest.mark.parametrize(
    "error", [KeyError("x"), ValueError("x"), caused(ValueError("x"), FederationError("y"))]
)
def test_unexpected_errors_keep_their_traceback(
    error: Exception, logged: Callable[[Exception], str]
) -> None:
    assert "Traceback (most recent call last):" in logged(error)


@pytest.mark.usefixtures("no_plugins_left")
def test_errors_in_the_code_of_a_plugin_keep_their_traceback(tmp_path: Path) -> None:
    code = "from models.slicing import SliceError\ndef fail():\n    raise SliceError('x')\n"
    plugins.load(saved(tmp_path, NETWORK + code))
    with pytest.raises(SliceError) as raised:
        plugins.mine.fail()  # type: ignore[attr-defined]
    assert failures.told(raised.value) is None
    assert failures.told(SliceError("x")) == "SliceError: x"
