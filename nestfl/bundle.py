"""Lists and copies the files of the app that a run sends to its clients, by pyproject.toml.

Flower looks through a whole checkout for them, including a virtualenv's 70,000 files.
"""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Mapping
from pathlib import Path

import nestfl

APP = Path(nestfl.APP)
"""The app of this process."""
SETTINGS = ("pyproject.toml", ".gitignore")


class BundleError(ValueError):
    """A folder without a Flower app."""


def app_files(checkout: Path) -> dict[str, Path]:
    """Return the app's files by their names in it, chosen by the same patterns as Flower's."""
    try:
        settings = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))
        app = settings["tool"]["flwr"]["app"]
        app["components"]
    except (OSError, KeyError, tomllib.TOMLDecodeError):
        raise BundleError(f"no Flower app in {checkout}: expected a checkout of nestfl") from None
    patterns = app.get("fab-include", ["**/*"])
    files = {file for pattern in patterns for file in checkout.glob(pattern) if file.is_file()}
    files |= {checkout / name for name in SETTINGS if (checkout / name).is_file()}
    found = {file.relative_to(checkout).as_posix(): file for file in files if not file.is_symlink()}
    return dict(sorted(found.items()))


def copy_app(checkout: Path, folder: Path, plugins: Mapping[str, bytes] = {}) -> None:
    """Copy the app to a folder that `flwr run` takes like a checkout.

    `plugins` has the contents of a user's plugins by their names in the app; they are added.
    """
    for name, file in app_files(checkout).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, folder / name)
    for name, content in plugins.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
