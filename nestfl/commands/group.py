"""The command group `nestfl`, to which each command of this package adds itself."""

from __future__ import annotations

from typing import Any

import click

import plugins
from nestfl.commands.shared_options import refuse

SETTINGS = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
    "show_default": True,
}


class Commands(click.Group):
    """Reports errors of a user's own code in one line, like other wrong input."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (Exception, SystemExit) as error:
            if plugins.where_in_plugins(error) is None:
                raise
            refuse(str(ctx.invoked_subcommand), error)


@click.group(cls=Commands, context_settings=SETTINGS)
def app() -> None:
    """Federated learning of one network on devices that cannot all hold it."""
