"""Columns of numbers in tables and archives: what is no number is told with its row and column."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.broken import Broken
from data.catalog import DataError
from data.tables import Rows
from data.written import NUMBER

A_NUMBER = rf"^\s*{NUMBER.pattern}\s*$"
"""A text that is a number, maybe between spaces."""
INDICES = ("", "Unnamed: 0", "__index_level_0__")
"""What pandas calls the numbers of rows, which it writes beside the columns of a table."""


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
