"""Which code a side runs: in a simulation, clients can load another checkout's without a word."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

VERSION = 5
"""Of the records. Raise it when they change."""
SHARED = ("client_app", "data", "models", "protocol", "strategies", "training")


@cache
def code_hash() -> str:
    """Return a hash of the sources that server and clients must have in common."""
    root = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for package in SHARED:
        for source in sorted((root / package).rglob("*.py")):
            digest.update(str(source.relative_to(root)).encode())
            digest.update(source.read_bytes())
    return digest.hexdigest()[:16]
