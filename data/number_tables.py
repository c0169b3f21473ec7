"""List the examples of tables and arrays of numbers: windows of their rows.

A window is of one class, one owner and one file. What is no number is told with its row and column.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from data.catalog import DataError
from data.foreign_files import Broken
from data.listed import Listed, label_column, of_rows
from data.spec import DatasetSpec
from data.tables import LABEL, NUMBER, Rows

A_NUMBER = rf"^\s*{NUMBER.pattern}\s*$"
"""A text that is a number, maybe between spaces."""
INDICES = ("", "Unnamed: 0", "__index_level_0__")
"""Names that pandas gives to the numbers of rows, which it writes beside a table's columns."""


def number_columns(rows: Rows, besides: Collection[str]) -> tuple[str, ...]:
    """Return the columns of a table that hold numbers, but for some.

    One of texts, more than half of which are numbers, is among them: the others are mistakes.
    """
    names = [name for name in rows.table.column_names if name not in (*besides, *INDICES)]
    found = tuple(name for name in names if _holds_numbers(rows.table.column(name)))
    if not found:
        raise DataError(
            f"{rows.where}: no column of numbers; which column holds the texts? Set dataset.text "
            f"to one of: {', '.join(rows.table.column_names)}"
        )
    return found


def may_be_numbers(rows: Rows) -> list[str]:
    """Return the columns of a table that `number_columns` may choose, by their types alone."""
    import pyarrow as pa

    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    columns = {name: rows.table.column(name) for name in rows.table.column_names}
    return [
        name
        for name, column in columns.items()
        if _is_text(column) or any(is_kind(column.type) for is_kind in kinds)
    ]


def read_numbers(rows: Rows, names: Sequence[str]) -> tuple[NDArray[np.float32], list[Broken]]:
    """Return columns as [rows, columns], and the rows that hold something else than a number."""
    numbers, broken = np.zeros((len(rows), len(names)), np.float32), list[Broken]()
    for place, name in enumerate(names):
        column = rows.column(name, "dataset.columns")
        numbers[:, place] = _as_numbers(column)
        for row in np.flatnonzero(~np.isfinite(numbers[:, place])).tolist():
            broken.append(Broken(rows.place(row), f": {_why(name, column[row].as_py())}"))
    return numbers, broken


def require_numbers(x: NDArray[Any], place: str) -> None:
    """Raise unless an array holds numbers [rows, columns] or [n, length, columns]."""
    if x.dtype.kind not in "iuf" or x.ndim not in (2, 3) or 0 in x.shape[1:]:
        raise DataError(
            f"{place}: x is {x.dtype} of shape {x.shape}: expected numbers [n, columns] or "
            "[n, length, columns]"
        )


def checked_array(
    x: NDArray[Any], place: str, names: Sequence[str]
) -> tuple[NDArray[np.float32], list[Broken]]:
    """Return such an array as numbers, and its broken rows; its columns have names."""
    with np.errstate(over="ignore"):
        numbers = x.astype(np.float32)
    wrong = ~np.isfinite(numbers if x.ndim == 2 else numbers.swapaxes(1, 2))
    seen = dict[int, int]()  # the first such column of each row
    for row, column, *_ in np.argwhere(wrong).tolist():
        seen.setdefault(row, column)
    why = ": column {} holds a value that is no finite number"
    return numbers, [
        Broken(f"{place}, row {row}", why.format(names[at])) for row, at in seen.items()
    ]


def _holds_numbers(column: Any) -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        return True
    if not _is_text(column):
        return False
    numbers = pc.sum(pc.match_substring_regex(column, A_NUMBER)).as_py() or 0
    return bool(2 * numbers > len(column) - column.null_count)


def _as_numbers(column: Any) -> NDArray[np.float32]:
    """Return a column as numbers; what is none, or is too large, is not finite."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if _is_text(column):
        is_number = pc.match_substring_regex(column, A_NUMBER)
        column = pc.utf8_trim_whitespace(pc.if_else(is_number, column, None))
    try:
        column = column.cast(pa.float64(), safe=False)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):  # lists, times and the like
        return np.full(len(column), np.nan, np.float32)
    with np.errstate(over="ignore"):
        numbers: NDArray[np.float32] = column.to_numpy().astype(np.float32)
    return numbers


def _is_text(column: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(column.type) or pa.types.is_large_string(column.type))


def _why(name: str, value: Any) -> str:
    if value is None or not str(value).strip():
        return f"no {name}: expected a number"
    found = repr(value[:50]) if isinstance(value, str) else str(value)[:50]
    return f"{name} is {found}: expected a number"


# --- windows


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


# --- examples


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
