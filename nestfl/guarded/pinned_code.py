"""Checks code by its fingerprint: bundles (FABs) of runs, and this checkout."""

from __future__ import annotations

import hashlib
import json
import re
import zlib
from collections.abc import Collection
from io import BytesIO
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from nestfl.bundle import app_files

LARGEST = 64 * 2**20
"""Most bytes of a bundle's files together."""
ANY = "any"


class CodeError(ValueError):
    """Code that this device does not run, or an invalid fingerprint."""


def fingerprint(bundle: bytes) -> str:
    """Return the fingerprint of a bundle's files; it does not depend on their compression."""
    try:
        with ZipFile(BytesIO(bundle)) as archive:
            files = archive.infolist()
            size = sum(file.file_size for file in files)
            if size > LARGEST:
                raise CodeError(f"the run's bundle holds {size} bytes: expected at most {LARGEST}")
            hashes = [hashlib.sha256(archive.read(file)).hexdigest() for file in files]
    except (BadZipFile, NotImplementedError, RuntimeError, zlib.error, EOFError) as error:
        raise CodeError(f"the run's bundle cannot be read ({error})") from None
    contents = sorted(zip((file.filename for file in files), hashes, strict=True))
    return hashlib.sha256(json.dumps(contents).encode()).hexdigest()


def fingerprint_of(code: Path) -> str:
    """Return the fingerprint of a bundle's file, or of the code that a checkout's run sends."""
    from flwr.cli.build import build_fab_from_files

    if code.is_file():
        return fingerprint(code.read_bytes())
    return fingerprint(build_fab_from_files(app_files(code))[0])


def allowed_code(said: str | None, own: str) -> frozenset[str] | None:
    """Return the fingerprints in a node config; default: this checkout's. None allows any code."""
    if said is None:
        return frozenset([own])
    if said == ANY:
        return None
    named = said.replace(",", " ").split()
    wrong = [name for name in named if not re.fullmatch("[0-9a-f]{64}", name)]
    if wrong or not named:
        raise CodeError(
            f"code is {said!r}: expected fingerprints of 64 hexadecimal digits, as `nestfl "
            f"fingerprint` prints them, or {ANY!r}"
        )
    return frozenset(named)


def check_code(bundle: bytes, allowed: Collection[str] | None) -> None:
    """Raise unless a bundle's fingerprint is allowed."""
    if allowed is None:
        return
    found = fingerprint(bundle)
    if found not in allowed:
        known = ", ".join(sorted(name[:12] for name in allowed))
        raise CodeError(
            f"this device does not run the code {found[:12]} that was sent, but only {known}: "
            "bring its checkout to the server's version, or name the code in its node config "
            f'(code="{found}")'
        )
