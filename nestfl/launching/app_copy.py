"""Copies the app for a run's server and clients, since the checkout may change during the run."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from nestfl.bundle import copy_app

APPS = "apps"
CACHE = "NESTFL_CACHE"
UNUSED = 30 * 24 * 3600.0
"""Seconds after which a copy that no run has used is removed."""


def cache_dir() -> Path:
    """Return the cache folder of `data.cache`, without its import, which takes seconds."""
    return Path(os.environ.get(CACHE) or "~/.cache/nestfl").expanduser()


@contextmanager
def usable_cache() -> Iterator[None]:
    """Use another cache within the block if this user cannot write the usual one."""
    try:
        cache_dir().mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=cache_dir()).close()
    except (OSError, RuntimeError):  # RuntimeError: the user has no home
        before = os.environ.get(CACHE)
        with tempfile.TemporaryDirectory(prefix="nestfl-", ignore_cleanup_errors=True) as other:
            os.environ[CACHE] = other
            try:
                yield
            finally:
                os.environ.pop(CACHE) if before is None else os.environ.update({CACHE: before})
    else:
        yield


def kept_copy(app_dir: Path) -> Path:
    """Return a copy of the app, kept under a hash of its content together with its bytecode."""
    folder = cache_dir().absolute() / f"{APPS}-{os.getuid()}"  # users may share a cache
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=folder) as made:
        new = Path(made, "app")
        copy_app(app_dir, new)
        own = sorted(file.relative_to(new) for file in new.rglob("*") if file.is_file())
        copy = folder / _hash(new, own)
        if copy.is_dir() and _hash(copy, own) != copy.name:  # files in the copy were deleted
            shutil.rmtree(copy, ignore_errors=True)
        with suppress(OSError):  # it exists, or another run has been faster
            os.rename(new, copy)
    os.utime(copy)
    _remove_unused(folder)
    return copy


def _hash(app: Path, own: Sequence[Path]) -> str:
    """Return a hash of an app's own files, ignoring files that other runs have left there."""
    digest = hashlib.sha256()
    for name in own:
        content = (app / name).read_bytes() if (app / name).is_file() else b"gone"
        digest.update(f"{name.as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:20]


def _remove_unused(folder: Path) -> None:
    for copy in folder.iterdir():
        with suppress(FileNotFoundError):  # another run may remove it at the same time
            if time.time() - copy.stat().st_mtime > UNUSED:
                shutil.rmtree(copy, ignore_errors=True)
