"""Read parquet files: a few rows at a time, and no more than memory has room for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from data.catalog import DataError
from data.foreign_files import most_memory, reading, require_memory
from plugins.regular_files import require_regular

WIDTHS = {"BOOLEAN": 0, "INT32": 1, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8}
"""The fewest bytes that a value of a physical type takes as an Arrow column, but for its bits."""
AS_LONG_AS_STORED = frozenset({"PLAIN", "RLE", "BIT_PACKED", "DELTA_LENGTH_BYTE_ARRAY"})
"""Encodings in which each text is written out; others write a text once for many rows."""
ROWS_AT_A_TIME = 65_536


def open_parquet(
    file: Path,
    columns: Callable[[Any], Sequence[str]] | None = None,
    names: Collection[str] | None = None,
) -> Any:
    """Read a parquet file as an Arrow table: all columns, or those that are chosen.

    `columns` chooses by the schema, and may raise for a column that is missing: nothing has been
    read by then. `names` chooses those of these names that are there. A value that is stored once
    for many rows takes memory in each, so rows are read a few at a time, until they are too many.
    """
    import pyarrow as pa

    with opened_parquet(file) as opened:
        schema = opened.schema_arrow
        chosen = schema.names if columns is None else list(dict.fromkeys(columns(schema)))
        if names is not None:
            chosen = [name for name in chosen if name in names]
        needed, longest = _sizes(opened, chosen)
        require_memory(file, needed)
        rows = max(1, min(ROWS_AT_A_TIME, most_memory(file) // max(longest, 1)))
        batches, taken = [], 0
        for batch in opened.iter_batches(rows, columns=chosen):
            batches.append(batch.select(chosen))
            taken += batch.nbytes
            require_memory(file, taken)
        kept = pa.schema([schema.field(name) for name in chosen], schema.metadata)
        return pa.Table.from_batches(batches, kept)


def _sizes(opened: Any, names: Sequence[str]) -> tuple[int, int]:
    """Return the fewest bytes that columns take in memory, and the most that a row may take.

    The second counts only texts that may be stored once for many rows.
    """
    parts = [opened.schema.column(number) for number in range(len(opened.schema))]
    needed, longest = 0, 0
    for number, part in enumerate(parts):
        if not any(part.path == name or part.path.startswith(f"{name}.") for name in names):
            continue
        repeated = 0
        for group in range(opened.num_row_groups):
            notes = opened.metadata.row_group(group).column(number)
            if part.physical_type != "BYTE_ARRAY":
                needed += notes.num_values * WIDTHS.get(part.physical_type, part.length)
                continue
            needed += notes.total_uncompressed_size
            if not AS_LONG_AS_STORED.issuperset(notes.encodings):
                repeated = max(repeated, notes.total_uncompressed_size)
        longest += repeated
    return needed, longest


@contextmanager
def opened_parquet(file: Path) -> Iterator[Any]:
    """Open a parquet file; what goes wrong while it is open is a `DataError` that names it."""
    import pyarrow.parquet as pq

    with reading(file):
        require_regular(file)
        with pq.ParquetFile(file) as opened:
            yield opened


def parquet_schema(file: Path) -> Any:
    """Return the columns of a parquet file, which is not read for that."""
    with opened_parquet(file) as opened:
        return opened.schema_arrow


def first_column(schema: Any, names: Sequence[str]) -> str:
    """Return the first of these columns that a table has, by its schema."""
    found = next((name for name in names if name in schema.names), None)
    if found is None:
        raise DataError(
            f"no column {' or '.join(names)}; the columns are: {', '.join(schema.names)}"
        )
    return found
