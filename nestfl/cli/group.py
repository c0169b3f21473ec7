"""`nestfl`, to which each command of this package adds itself."""

from __future__ import annotations

import click

SETTINGS = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
    "show_default": True,
}


@click.group(context_settings=SETTINGS)
def app() -> None:
    """Federated learning of one network on devices that cannot all hold it."""
