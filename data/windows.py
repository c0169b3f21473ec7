"""Windows of a table: as many rows one after the other as make an example."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Windows(NamedTuple):
    """Where windows of a table are."""

    starts: NDArray[np.int64]
    """The first row of each."""
    runs: NDArray[np.int64]
    """The number of the run of rows, without a change, that each is in."""


def windows_of(rows: int, window: int, keys: Sequence[NDArray[Any]] = ()) -> Windows:
    """Find windows one after the other: they do not overlap, nor cross a change of a key.

    Rows behind the last whole window before a change are in none.
    """
    changed = np.zeros(rows, bool)
    changed[:1] = True
    for key in keys:
        changed[1:] |= key[1:] != key[:-1]
    begins = np.flatnonzero(changed)
    counts = np.diff(begins, append=rows) // window
    inside = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = np.repeat(begins, counts) + inside * window
    return Windows(starts, np.repeat(np.arange(len(begins)), counts))


def cut(
    numbers: NDArray[np.float32], starts: NDArray[np.int64], window: int
) -> NDArray[np.float32]:
    """Return the windows of a table [rows, columns] as series [n, columns, window]."""
    rows = starts[:, None] + np.arange(window)
    return np.ascontiguousarray(numbers[rows].transpose(0, 2, 1))
