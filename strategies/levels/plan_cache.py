"""Caches planning results on disk: they take seconds, and are the same in each run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

import plugins
from data.cache import Arrays, cached_arrays
from data.catalog import DataError
from models.families import family, names
from models.task import Task
from protocol.code import code_hash


def kept(kind: str, task: Task, key: object, compute: Callable[[], Arrays]) -> Arrays:
    """Return `compute()`'s arrays about a network, cached on disk while the code is the same.

    Where the cache cannot be written, as on some devices, the arrays are computed each time.
    """
    if not _is_hashed(task.model):
        return compute()
    try:
        return cached_arrays(kind, (code_hash(), torch.__version__, task, key), compute)
    except (DataError, OSError):
        return compute()


def _is_hashed(model: str) -> bool:
    """Return whether the code's hash covers a network; changes in others would go unnoticed."""
    made_by = family(model).construct if model in names() else None
    while isinstance(made_by, partial):
        made_by = made_by.func
    module = str(getattr(made_by, "__module__", ""))
    package = module.partition(".")[0]
    return package == "models" or (package == "plugins" and plugins.is_whole(module))
