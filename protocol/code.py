"""Which code a side runs: in a simulation, clients can load another checkout's without a word."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import plugins

VERSION = 5
"""Of the records. Raise it when they change."""
SHARED = ("client_app", "data", "models", "protocol", "strategies", "training")


def code_hash() -> str:
    """Return a hash of the sources that server and clients must have in common: plugins, too."""
    return _hash_with(tuple(plugins.files().items()))


@cache
def _hash_with(others: tuple[tuple[str, bytes], ...]) -> str:
    root = Path(__file__).resolve().parents[1]
    sources = [file for package in SHARED for file in sorted((root / package).rglob("*.py"))]
    sources.append(root / plugins.FOLDER / "__init__.py")
    own = [(file.relative_to(root).as_posix(), file.read_bytes()) for file in sources]
    digest = hashlib.sha256()
    for name, content in (*own, *others):
        digest.update(name.encode())
        digest.update(content)
    return digest.hexdigest()[:16]
