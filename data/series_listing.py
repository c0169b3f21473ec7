"""The series of one's own files, as windows of their rows: of one class, one owner and one file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from data.catalog import DataError
from data.listed import Listed, label_column, of_rows
from data.numbers import checked_array, number_columns, read_numbers, require_numbers
from data.spec import DatasetSpec
from data.tables import LABEL, Rows
from data.windows import cut, windows_of


def list_series(rows: Rows, spec: DatasetSpec, column: str | None, labelled: bool = True) -> Listed:
    """List windows of a table of numbers, each of one class, one file and one owner."""
    if not len(rows):
        raise DataError(f"no examples in {rows.where}")
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


def array_columns(archive: NpzFile, spec: DatasetSpec, x: NDArray[Any]) -> tuple[str, ...]:
    """Return the names of the columns of an archive: those in `columns`, else their numbers.

    Who starts a run may not ask for a column of labels; a device's run may have one elsewhere.
    """
    if not spec.is_known and spec.label not in (None, LABEL):
        raise DataError(
            f"dataset.label is {spec.label}, but the labels of an archive are in y: expected null"
        )
    if spec.holds != "series":
        return ()
    if "columns" not in archive:
        return tuple(str(number) for number in range(x.shape[-1] if x.ndim else 0))
    names = tuple(str(name) for name in archive["columns"].reshape(-1).tolist())
    if x.ndim and not len(set(names)) == len(names) == x.shape[-1]:
        raise DataError(
            f"columns has {len(names)} names, {', '.join(names)}, for the {x.shape[-1]} columns of "
            "x: expected one each, each of them once"
        )
    return names


def _chosen(found: Listed, spec: DatasetSpec, file: str) -> Listed:
    """Return the columns that are asked for, in that order; all, if none are."""
    if spec.columns is None or spec.columns == found.columns:
        return found
    places = {name: place for place, name in enumerate(found.columns)}
    unknown = [name for name in spec.columns if name not in places]
    numbered = found.columns == tuple(map(str, range(len(found.columns))))
    if unknown or (numbered and len(found.columns) != len(spec.columns)):
        names = "without names" if numbered else f"({', '.join(found.columns)})"
        raise DataError(
            f"{file}: x has {len(found.columns)} columns {names}: expected the run's "
            f"{len(spec.columns)}, {', '.join(spec.columns)} (dataset.columns); an array `columns` "
            "in the archive names them"
        )
    chosen = found.inputs[..., [places[name] for name in spec.columns]]
    return replace(found, inputs=chosen, columns=spec.columns)


def list_series_archive(found: Listed, spec: DatasetSpec) -> Listed:
    """List the series of an archive: as they are, or windows of its rows."""
    file = found.place(0).rpartition(", row")[0] if len(found) else ""
    require_numbers(found.inputs, file)
    found = _chosen(found, spec, file)
    numbers, broken = checked_array(found.inputs, file, found.columns)
    found = replace(found, inputs=numbers, broken=[*found.broken, *broken])
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
