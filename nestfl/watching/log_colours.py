"""Flower's log as this process shows it."""

from __future__ import annotations

import sys


def colour_for_terminals() -> None:
    """Leave colours out of the log where it goes to a file or to another program."""
    from flwr.supercore.logger import update_console_handler  # it takes most of a second

    update_console_handler(colored=sys.stderr.isatty())
