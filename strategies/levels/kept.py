"""Keeps what planning finds for the next run: it takes seconds, and is the same each time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from data.cache import Arrays, cached_arrays
from data.catalog import DataError
from models.families import family, names
from models.task import Task
from protocol.code import code_hash

HASHED = ("models", "plugins")
"""Packages whose networks are part of the code's hash: others may change, and nobody would know."""


def kept(kind: str, task: Task, key: object, compute: Callable[[], Arrays]) -> Arrays:
    """Return `compute()`'s arrays about a network, kept on disk as long as the code is the same.

    Where no cache can be written, as on some devices, they are computed each time.
    """
    if not _is_hashed(task.model):
        return compute()
    try:
        return cached_arrays(kind, (code_hash(), torch.__version__, task, key), compute)
    except (DataError, OSError):
        return compute()


def _is_hashed(model: str) -> bool:
    made_by = family(model).construct if model in names() else None
    while isinstance(made_by, partial):
        made_by = made_by.func
    return getattr(made_by, "__module__", "").partition(".")[0] in HASHED
