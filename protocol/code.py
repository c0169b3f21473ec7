"""Compares the code of server and clients: a simulation may load clients from another checkout."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import plugins
from protocol.reading import ProtocolError, shown

VERSION = 6
"""Version of the records; raise it when they change."""
SHARED = ("client_app", "data", "models", "protocol", "strategies", "training")


def code_hash() -> str:
    """Return a hash of the sources that server and clients must share, with plugins."""
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


class OtherCodeError(ProtocolError):
    """An error of a side that runs another version of this app."""


def check_code(code: object, version: object) -> None:
    """Raise unless the other side runs this protocol and this code."""
    if version != VERSION:
        raise OtherCodeError(
            f"protocol version {shown(version)} there, {VERSION} here: update one side"
        )
    if code != code_hash():
        raise OtherCodeError(
            f"server and client run different code ({shown(code)} and {code_hash()!r}): in a "
            "simulation, a SuperLink that was started in another checkout serves that checkout's "
            "clients"
        )
