"""Parquet files, and columns of images in them and in other Arrow tables."""

from __future__ import annotations

import io
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.broken import Broken
from data.catalog import DataError, ImageFacts
from data.formats import (
    ImageSplit,
    SplitName,
    checked_split,
    decode_images,
    most_memory,
    reading,
    require_memory,
)
from data.named_images import Named, folder_of, named_files, named_image, paths_in
from plugins.regular_files import require_regular

IMAGE_COLUMNS = ("img", "image")
LABEL_COLUMNS = ("label", "fine_label")
WIDTHS = {"BOOLEAN": 0, "INT32": 1, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8}
"""The fewest bytes that a value of a physical type takes as an Arrow column, but for its bits."""
AS_LONG_AS_STORED = frozenset({"PLAIN", "RLE", "BIT_PACKED", "DELTA_LENGTH_BYTE_ARRAY"})
"""Encodings in which each text is written out; others write a text once for many rows."""
ROWS_AT_A_TIME = 65_536


def read_parquet(files: Sequence[Path], facts: ImageFacts, split: SplitName) -> ImageSplit:
    """Read parquet files with a column of encoded images and a column of labels."""
    import pyarrow as pa

    tables = [open_parquet(file, image_and_label) for file in files]
    with reading(files[0] if len(files) == 1 else files[0].parent):
        named = named_beside(files, list(map(len, tables)))
        return read_table(pa.concat_tables(tables), facts, named)


def image_and_label(schema: Any) -> list[str]:
    """Return the columns of encoded images and of labels."""
    return [first_column(schema, IMAGE_COLUMNS), first_column(schema, LABEL_COLUMNS)]


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

    with _opened(file) as opened:
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
def _opened(file: Path) -> Iterator[Any]:
    """Open a parquet file; what goes wrong while it is open is a `DataError` that names it."""
    import pyarrow.parquet as pq

    with reading(file):
        require_regular(file)
        with pq.ParquetFile(file) as opened:
            yield opened


def read_table(table: Any, facts: ImageFacts, named: Named) -> ImageSplit:
    """Read an Arrow table with a column of encoded images and a column of labels."""
    labels = table.column(first_column(table.schema, LABEL_COLUMNS)).to_numpy()
    return checked_split(table_images(table, facts, named), labels, facts)


def table_images(table: Any, facts: ImageFacts, named: Named) -> NDArray[np.uint8]:
    """Return the decoded images of an Arrow table, [n, height, width, channels].

    They are bytes or paths, or structs of `bytes` and `path`, which are Hugging Face's.
    """
    column = table.column(first_column(table.schema, IMAGE_COLUMNS))
    return decode_images(encoded_images(column, "row {}".format, named), len(table), facts)


def named_beside(files: Sequence[Path], counts: Sequence[int]) -> Named:
    """Let tables of so many rows each name images below their own folders."""
    ends = np.cumsum(counts)

    def named(row: int, text: str) -> Path | str:
        file = files[int(np.searchsorted(ends, row, side="right"))]
        return named_image(text, file, folder_of(file))

    return named


def named_by_parquet(files: Sequence[Path]) -> list[Path]:
    """Return the paths of images that parquet files of a data set of the catalogue name."""
    return named_files("catalogue", files, lambda: _paths_of(files))


def _paths_of(files: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    for file in files:
        with reading(file):
            column = first_column(parquet_schema(file), IMAGE_COLUMNS)
            if not holds_all_images(file, column):
                paths = paths_in(open_parquet(file, names=[column])[column])
                yield from ((file, path) for path in paths)


def parquet_schema(file: Path) -> Any:
    """Return the columns of a parquet file, which is not read for that."""
    with _opened(file) as opened:
        return opened.schema_arrow


def holds_all_images(file: Path, column: str) -> bool:
    """Return whether a parquet file is sure to name no image by path: it may be too large to ask.

    It tells of the `bytes` of structs how many are missing.
    """
    import pyarrow as pa

    with _opened(file) as opened:
        kind, notes = opened.schema_arrow.field(column).type, opened.metadata
        if not pa.types.is_struct(kind):
            return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
        groups = [notes.row_group(number) for number in range(notes.num_row_groups)]
        columns = [group.column(n) for group in groups for n in range(group.num_columns)]
        told = [each.statistics for each in columns if each.path_in_schema == f"{column}.bytes"]
        return bool(told) and all(
            each is not None and each.has_null_count and not each.null_count for each in told
        )


def encoded_images(
    column: Any, place: Callable[[int], str], named: Named
) -> Iterator[io.BytesIO | Path | Broken]:
    """Yield the images of an Arrow column, and what is wrong with those that are none."""
    rows = (row for chunk in column.chunks for row in _values(chunk))
    for number, row in enumerate(rows):
        if isinstance(row, dict):
            row = row.get("path") if row.get("bytes") is None else row["bytes"]
        if isinstance(row, bytes):
            yield io.BytesIO(row)
        elif isinstance(row, str):
            file = named(number, row)
            yield Broken(place(number), file) if isinstance(file, str) else file
        else:
            found = "nothing" if row is None else f"a value of type {type(row).__name__}"
            why = f" holds {found}: expected an encoded image, as bytes or a path"
            yield Broken(place(number), why)


def _values(chunk: Any) -> Iterator[Any]:
    """Yield the values of a part of a column, a few at a time: images are large."""
    for start in range(0, len(chunk), 1024):
        yield from chunk.slice(start, 1024).to_pylist()


def first_column(schema: Any, names: Sequence[str]) -> str:
    """Return the first of these columns that a table has, by its schema."""
    found = next((name for name in names if name in schema.names), None)
    if found is None:
        raise DataError(
            f"no column {' or '.join(names)}; the columns are: {', '.join(schema.names)}"
        )
    return found
