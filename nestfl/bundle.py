"""The files of the app that a run sends to its clients: those that pyproject.toml names.

Flower looks through a whole checkout for them, a virtualenv's 70,000 files included.
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
    """There is no app in that place."""


def app_files(checkout: Path) -> dict[str, Path]:
    """Return the files of the app by their names in it, and what Flower chooses them by."""
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
    """Copy the app to a folder, which `flwr run` takes as it takes the checkout.

    A user's plugins, by the names of their files in the app, are beside those that it has.
    """
    for name, file in app_files(checkout).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, folder / name)
    for name, content in plugins.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
