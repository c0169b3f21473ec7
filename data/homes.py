"""Paths as they are typed: a leading ~ is somebody's home."""

from __future__ import annotations

from pathlib import Path


def with_home(path: str | Path) -> Path:
    """Return a path without its ~, or raise where nobody here has that home."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        user = Path(path).parts[0]
        raise ValueError(
            f"{path}: no home is known for {user}; expected ~/ for your own, or a path without ~"
        ) from None
