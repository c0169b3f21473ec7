"""Arrays computed once a machine: kept as .npy files, memory-mapped by every process."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from data.catalog import DataError
from data.homes import with_home

Arrays = Mapping[str, NDArray[Any]]
Fingerprint = list[tuple[str, int, int]]
"""Path, size and time of change of files."""

LAYOUT_VERSION = 2
"""Part of every key: raise it when what is written for the same input changes."""


def cache_dir() -> Path:
    """Return the folder where arrays are kept: $NESTFL_CACHE, else ~/.cache/nestfl."""
    chosen = os.environ.get("NESTFL_CACHE") or Path("~/.cache/nestfl")
    return with_home(chosen)


def fingerprint_of(files: Iterable[Path]) -> Fingerprint:
    """Return path, size and time of change, which differ between files and after a change."""
    stats = ((file, file.stat()) for file in dict.fromkeys(files))
    return [(str(file), stat.st_size, stat.st_mtime_ns) for file, stat in stats]


def cached_arrays(kind: str, key: object, compute: Callable[[], Arrays]) -> Arrays:
    """Return `compute()`'s arrays, memory-mapped; `repr(key)` must say all they depend on."""
    digest = hashlib.sha256(repr((LAYOUT_VERSION, key)).encode()).hexdigest()[:20]
    entry = cache_dir() / f"{kind}-{digest}"
    if not entry.is_dir():
        _make_cache_dir()
        with FileLock(f"{entry}.lock"):  # the others wait, rather than decode the same again
            if not entry.is_dir():
                _write_atomically(entry, compute())
    # Copy-on-write mappings share their pages and are writable, as torch.from_numpy wants them.
    return {file.stem: np.asarray(np.load(file, mmap_mode="c")) for file in entry.glob("*.npy")}


def _write_atomically(entry: Path, arrays: Arrays) -> None:
    unfinished = entry.with_name(f"{entry.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)  # left by a process that was killed here
    unfinished.mkdir()
    for name, array in arrays.items():
        np.save(unfinished / f"{name}.npy", array)
    unfinished.rename(entry)


def _make_cache_dir() -> None:
    try:
        cache_dir().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"no cache in {cache_dir()} ({error}); set NESTFL_CACHE to a writable folder"
        ) from error
