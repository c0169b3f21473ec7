"""Where a run's own configuration is kept."""

from __future__ import annotations

from pathlib import Path

from server_app.config.typed import ConfigError

CONFIG_FILE = "config.yaml"


def run_directory(path: Path) -> Path:
    """Return the directory of the run that a checkpoint, their folder or the directory is of."""
    for folder in (path, *path.resolve().parents[:2]):
        if (folder / CONFIG_FILE).is_file():
            return folder
    raise ConfigError(f"{path} is no run directory and in none (no {CONFIG_FILE})")
