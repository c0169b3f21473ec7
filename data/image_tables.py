"""Read tables of images: in the table itself, or in files that it names by path.

A table may be from anybody. So it opens nothing outside of the folder that the run, or the owner of
a device, has named; and the images that it names are part of what a cached copy depends on.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from data.cache import Fingerprint, cached_arrays, fingerprint_of
from data.catalog import DataError, ImageFacts
from data.examples import ImageSplit
from data.foreign_files import Broken, reading
from data.image_files import SplitName, checked_split, decode_images
from data.parquet import first_column, open_parquet, opened_parquet, parquet_schema
from data.tables import Rows, columns_of

IMAGE_COLUMNS = ("img", "image")
LABEL_COLUMNS = ("label", "fine_label")
Named = Callable[[int, str], Path | str]
"""Returns the image that a row names by path, or what is wrong with that."""
Names = Callable[[], Iterable[tuple[Path, str]]]
"""Returns what tables name: a table and a path each."""


def image_column(rows: Rows) -> str:
    """Return the column of a table that holds images."""
    said = (name for name in rows.table.column_names if rows.feature(name).get("_type") == "Image")
    found = next(said, None)
    with reading(rows.where):
        return found or first_column(rows.table.schema, IMAGE_COLUMNS)


def may_hold_images(file: Path) -> bool:
    """Return whether a table can be read and has a column of images, or of their paths."""
    import pyarrow as pa

    try:
        rows = columns_of(file)
        kind = rows.table.schema.field(image_column(rows)).type
    except DataError:
        return False
    texts = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return bool(texts or pa.types.is_struct(kind) or pa.types.is_binary(kind))


@dataclass(frozen=True)
class TableImages:
    """The encoded images of a table, row by row."""

    rows: Rows
    column: Any
    root: Path
    """The folder in which it may name images."""

    def __iter__(self) -> Iterator[BytesIO | Path | Broken]:
        return encoded_images(self.column, self.rows.place, self._named)

    def _named(self, row: int, text: str) -> Path | str:
        return named_image(text, self.rows.file_of(row), self.root)


def images_of(rows: Rows, place: Path) -> TableImages:
    """Return the images of a table that was found in a place."""
    return TableImages(rows, rows.table.column(image_column(rows)), folder_of(place))


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


# --- data sets of the catalogue


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


# --- images that tables name


def folder_of(place: Path) -> Path:
    """Return the folder in which the tables of a place, a file or a folder, may name images."""
    place = place.expanduser().resolve()
    return place if place.is_dir() else place.parent


def named_image(text: str, table: Path, root: Path) -> Path | str:
    """Return the image that a table names, or why it is not opened: it must lie below `root`."""
    named = table.parent / text
    try:
        file = Path(os.path.realpath(named))
    except (OSError, ValueError) as error:  # of a text that is no path
        return f" names {text[:200]!r}, which is no path: {error}"
    if not file.is_relative_to(root.resolve()):
        return (
            f" names {text}, which is outside of {root}: expected an image in there, by its path "
            "from the table's folder"
        )
    return file if os.path.isfile(file) else f" names {text}, but {named} is no file"


def paths_in(column: Any) -> list[str]:
    """Return the paths in an Arrow column of images: texts, or structs without `bytes`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_struct(column.type):
        fields = {field.name: field.type for field in column.type}
        if "path" not in fields:
            return []
        paths = pc.struct_field(column, "path")
        if "bytes" in fields and not pa.types.is_null(fields["bytes"]):
            paths = paths.filter(pc.is_null(pc.struct_field(column, "bytes")))
        column = paths
    elif pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return []
    return [text for text in column.to_pylist() if isinstance(text, str)]


def named_files(
    kind: Literal["own", "catalogue"], tables: Sequence[Path], names: Names
) -> list[Path]:
    """Return the paths that tables name, be there files or not; read once until a table changes."""

    def read() -> dict[str, Any]:
        files = dict.fromkeys(os.path.normpath(table.parent / text) for table, text in names())
        return {"files": np.array([os.fsencode(file).hex() for file in files], np.str_)}

    found = cached_arrays("named", (kind, fingerprint_of(tables)), read)["files"].tolist()
    return [Path(os.fsdecode(bytes.fromhex(file))) for file in found]


def fingerprint_of_named(files: Iterable[Path]) -> Fingerprint:
    """Return size and time of change of the images that tables name.

    Whoever reads the tables says of those that are missing.
    """
    return fingerprint_of(file for file in files if os.path.isfile(file))


def holds_all_images(file: Path, column: str) -> bool:
    """Return whether a parquet file is sure to name no image by path: it may be too large to ask.

    It tells of the `bytes` of structs how many are missing.
    """
    import pyarrow as pa

    with opened_parquet(file) as opened:
        kind, notes = opened.schema_arrow.field(column).type, opened.metadata
        if not pa.types.is_struct(kind):
            return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
        groups = [notes.row_group(number) for number in range(notes.num_row_groups)]
        columns = [group.column(n) for group in groups for n in range(group.num_columns)]
        told = [each.statistics for each in columns if each.path_in_schema == f"{column}.bytes"]
        return bool(told) and all(
            each is not None and each.has_null_count and not each.null_count for each in told
        )
