"""The copy of the app that a run's server and clients import: a checkout may change meanwhile."""

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
"""Seconds after which a copy that no run has taken is removed."""


def cache_dir() -> Path:
    """Return the folder that `data.cache` keeps arrays in, whose import takes seconds."""
    return Path(os.environ.get(CACHE) or "~/.cache/nestfl").expanduser()


@contextmanager
def usable_cache() -> Iterator[None]:
    """Let a user who may not write the cache, as one without a home, have another for a while."""
    try:
        cache_dir().mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=cache_dir()).close()
    except (OSError, RuntimeError):  # the latter where there is no home
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
    """Return a copy of the app, which is kept under its content: what it compiles to, also."""
    folder = cache_dir().absolute() / f"{APPS}-{os.getuid()}"  # where users share a cache, too
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=folder) as made:
        new = Path(made, "app")
        copy_app(app_dir, new)
        own = sorted(file.relative_to(new) for file in new.rglob("*") if file.is_file())
        copy = folder / _hash(new, own)
        if copy.is_dir() and _hash(copy, own) != copy.name:  # someone has cleaned up in it
            shutil.rmtree(copy, ignore_errors=True)
        with suppress(OSError):  # it is there, or another run has been faster
            os.rename(new, copy)
    os.utime(copy)
    _remove_unused(folder)
    return copy


def _hash(app: Path, own: Sequence[Path]) -> str:
    """Return a hash of an app's own files; what else a run may have left there is none of these."""
    digest = hashlib.sha256()
    for name in own:
        content = (app / name).read_bytes() if (app / name).is_file() else b"gone"
        digest.update(f"{name.as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()[:20]


def _remove_unused(folder: Path) -> None:
    for copy in folder.iterdir():
        with suppress(FileNotFoundError):  # another run removes it, too
            if time.time() - copy.stat().st_mtime > UNUSED:
                shutil.rmtree(copy, ignore_errors=True)
