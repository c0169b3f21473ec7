"""Sets the colours of Flower's log in this process."""

from __future__ import annotations

import sys


def colour_for_terminals() -> None:
    """Switch off colours in the log if it goes to a file or to another program."""
    from flwr.supercore.logger import update_console_handler  # slow to import

    update_console_handler(colored=sys.stderr.isatty())
