"""Tables of images of one's own: in the table itself, or in files that it names by path."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from data.broken import Broken
from data.cache import Fingerprint
from data.image_columns import image_column
from data.listed import Listed, label_column, of_rows
from data.named_images import (
    fingerprint_of_named,
    folder_of,
    named_files,
    named_image,
    paths_in,
)
from data.own_files import OwnFiles
from data.parquet import encoded_images, holds_all_images
from data.spec import DatasetSpec
from data.tables import Rows, columns_of, read_table_file


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


def list_images(rows: Rows, place: Path, spec: DatasetSpec, column: str | None) -> Listed:
    """List the rows of a table of images that was found in a place."""
    return of_rows(rows, images_of(rows, place), label_column(rows, spec), column, [], spec)


def named_by(files: OwnFiles, spec: DatasetSpec) -> list[Path]:
    """Return the paths of images that tables name."""
    if files.kind != "tables" or spec.holds != "images":
        return []
    tables = (*files.train, *files.test, *files.validation)

    def names() -> Iterator[tuple[Path, str]]:
        for file in tables:
            column = image_column(columns_of(file))
            if not (file.suffix == ".parquet" and holds_all_images(file, column)):
                for text in paths_in(read_table_file(file, names=[column]).column(column)):
                    yield file, text

    return named_files("own", tables, names)


def fingerprint_of_own(files: OwnFiles, spec: DatasetSpec) -> Fingerprint:
    """Return what a cached copy depends on: the files, and the images that tables name."""
    return [*files.fingerprint(), *fingerprint_of_named(named_by(files, spec))]
