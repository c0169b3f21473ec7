"""The series of one's own files, as windows of their rows: of one class, one owner and one file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.catalog import DataError
from data.listed import Listed, label_column, of_rows
from data.numbers import checked_array, number_columns, read_numbers
from data.spec import DatasetSpec
from data.tables import Rows
from data.windows import cut, windows_of


def list_series(rows: Rows, spec: DatasetSpec, column: str | None, labelled: bool = True) -> Listed:
    """List windows of a table of numbers, each of one class, one file and one owner."""
    label = label_column(rows, spec) if labelled else None
    besides = [name for name in (label, spec.label, spec.column, spec.test_column) if name]
    names = spec.columns or number_columns(rows, besides)
    numbers, broken = read_numbers(rows, names)
    found = Listed(numbers, [None] * len(rows), rows.place, broken=broken)
    if label is not None:
        found = of_rows(rows, numbers, label, column, broken, spec)
    apart = [name for name in (spec.column, spec.test_column) if name in rows.table.column_names]
    keys = [np.array(rows.table.column(name).to_pylist(), str) for name in apart if name]
    files = np.repeat(np.arange(len(rows.counts)), rows.counts)
    return replace(_in_windows(found, [files, *keys], spec), columns=names)


def list_series_archive(found: Listed, spec: DatasetSpec) -> Listed:
    """List the series of an archive: as they are, or windows of its rows."""
    file = found.place(0).rpartition(", row")[0] if len(found) else ""
    numbers, broken = checked_array(found.inputs, file)
    names = tuple(str(number) for number in range(numbers.shape[-1]))
    found = replace(found, inputs=numbers, broken=[*found.broken, *broken], columns=names)
    if numbers.ndim == 2:
        keys = [np.array(each) for each in (found.owners, found.groups) if each is not None]
        return _in_windows(found, keys, spec)
    if spec.window is not None:
        raise DataError(
            f"{file}: x is of shape {numbers.shape}, series already: expected window null, not "
            f"{spec.window}"
        )
    return replace(found, inputs=np.ascontiguousarray(numbers.transpose(0, 2, 1)))


def _in_windows(found: Listed, keys: Sequence[NDArray[Any]], spec: DatasetSpec) -> Listed:
    """Return the windows of rows, which do not cross a change of class or of another key."""
    window = spec.window or 1
    labels = np.array([str(label) for label in found.labels])
    starts, runs = windows_of(len(found), window, [*keys, labels])
    if len(found) and not len(starts):
        raise DataError(
            f"window is {window}, but no {window} rows from {found.place(0)} on are of one class "
            "and one owner: expected fewer"
        )

    def at_starts(each: Sequence[Any] | None) -> Any:
        return None if each is None else [each[row] for row in starts.tolist()]

    return replace(
        found,
        inputs=cut(found.inputs, starts, window),
        labels=at_starts(found.labels),
        owners=at_starts(found.owners),
        groups=at_starts(found.groups),
        place=lambda number: found.place(int(starts[number])),
        starts=starts,
        runs=runs,
        left_out=len(found) - window * len(starts),
    )
