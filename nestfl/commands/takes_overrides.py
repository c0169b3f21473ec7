"""A click command whose settings are given as key=value instead of options."""

from __future__ import annotations

from difflib import get_close_matches

import click


class TakesOverrides(click.Command):
    """Explains the key=value form to a user who has typed a setting as an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        given = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if (meant := _meant(error, self, ctx, given)) is None:
                raise
            raise click.UsageError(f"No such option '{error.option_name}': {meant}", ctx) from None


def _meant(
    error: click.NoSuchOption, command: click.Command, ctx: click.Context, args: list[str]
) -> str | None:
    """Return the setting that an unknown option stands for; None if it is more like an option."""
    from server_app.config.choices import settings_by_name

    settings = settings_by_name()
    options = {name.lstrip("-") for each in command.get_params(ctx) for name in each.opts}
    name = error.option_name.lstrip("-").replace("-", "_")
    closest = get_close_matches(name, [*settings, *options], n=1)
    if not closest or closest[0] in options:
        return None
    setting = f"{settings[closest[0]]}={_value_of(error.option_name, args)}"
    return f"settings are given as key=value. Did you mean {setting}?"


def _value_of(option: str, args: list[str]) -> str:
    """Return an option's value: after "=", or the next argument."""
    for argument, following in zip(args, [*args[1:], "-"], strict=True):
        name, equals, value = argument.partition("=")
        if name == option:
            return value if equals else "..." if following.startswith("-") else following
    return "..."
