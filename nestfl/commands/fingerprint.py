"""`nestfl fingerprint`: its options and help."""

from __future__ import annotations

from pathlib import Path

import click

from nestfl.commands.group import app
from nestfl.commands.shared_options import FILE, plugin_option, refuse


@app.command(
    epilog="""\b
    Examples:
      nestfl fingerprint
      nestfl fingerprint ../nestfl-1.2
      nestfl fingerprint nestfl.nestfl.0-1-0.95e48e9f.fab
      nestfl fingerprint --copy app
      nestfl fingerprint --plugin mine.py --copy app"""
)
@click.argument(
    "code",
    required=False,
    type=FILE,
    help="A checkout, or a bundle that `flwr build` made; this checkout if not given.",
)
@click.option(
    "--copy",
    metavar="FOLDER",
    type=FILE,
    help="Copy the checkout's app, and nothing else, there: `flwr run FOLDER` submits it faster.",
)
@plugin_option()
def fingerprint(code: Path | None, copy: Path | None) -> None:
    """Print the fingerprint of the code that a run sends; devices can pin it."""
    from tempfile import TemporaryDirectory

    import plugins
    from nestfl.bundle import APP, copy_app
    from nestfl.guarded.pinned_code import fingerprint_of

    try:
        with TemporaryDirectory() as unasked:
            folder, own = copy or Path(unasked), plugins.files()
            if copy is not None or own:
                copy_app(code or APP, folder, own)
            click.echo(fingerprint_of(folder if own else code or APP))
    except (ValueError, OSError) as error:
        refuse("fingerprint", error)
