"""Which column of a table holds images, and which tables hold any."""

from __future__ import annotations

from pathlib import Path

from data.catalog import DataError
from data.formats import reading
from data.parquet import IMAGE_COLUMNS, first_column
from data.tables import Rows, columns_of


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
