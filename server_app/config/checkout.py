"""Where a simulation's relative paths start: in the checkout that was run, or in no checkout.

`flwr run .` sends the app to a SuperLink that stays: it may have been started in another checkout,
and Flower does not tell which one a run came from. So the directory that the SuperLink was started
in is taken only if it holds the same app, file by file.
"""

from __future__ import annotations

import logging
import tomllib
from pathlib import Path

APP = Path(__file__).resolve().parents[2]
"""The app as it runs; in a simulation that is where Flower has unpacked it."""
NEUTRAL = "nestfl-results"
"""In the user's home, for runs whose checkout is not known."""

log = logging.getLogger("flwr")  # whose lines `flwr log` shows


def start_of_paths(started_in: Path, app: Path = APP) -> Path:
    """Return the directory that the SuperLink was started in, or else a neutral one, and warn."""
    if _sources(app) == _sources(started_in, like=app):
        return started_in
    neutral = Path.home() / NEUTRAL
    log.warning(
        "The SuperLink was started in %s, which does not hold the app that is run: relative paths "
        "start at %s instead. Give absolute ones (output=..., dataset.path=...), or end that "
        "SuperLink and start again.",
        started_in,
        neutral,
    )
    return neutral


def _sources(folder: Path, like: Path | None = None) -> dict[Path, bytes]:
    """Return the files that Flower would send of a folder, by the patterns of `like`."""
    settings = tomllib.loads(((like or folder) / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["flwr"]["app"]["fab-include"]
    files = {file for pattern in patterns for file in folder.glob(pattern)}
    return {file.relative_to(folder): file.read_bytes() for file in files}
