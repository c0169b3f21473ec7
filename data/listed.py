"""Examples as the files of one's own hold them, row by row, with the class and client of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.catalog import DataError
from data.foreign_files import Broken
from data.image_tables import LABEL_COLUMNS
from data.spec import DatasetSpec
from data.tables import LABEL, Rows


@dataclass(frozen=True)
class Listed:
    """Examples as files hold them, row by row."""

    inputs: Any
    """Images, of files or tables, or an array of them [n, channels, height, width]; texts; or
    numbers, of tables [n, columns, length]."""
    labels: Sequence[str | None]
    """The names of their classes; None where it is not published, or is broken."""
    place: Callable[[int], str]
    """Says where a row is from."""
    names: tuple[str, ...] | None = None
    """All classes in order, where files tell them."""
    owners: Sequence[str] | None = None
    """The name of the client that each is of, where files tell it."""
    broken: Sequence[Broken] = ()
    """Rows of which files do not tell what they should."""
    groups: Sequence[str] | None = None
    """What is held out for the test together with others of the same name, if that is asked for."""
    columns: tuple[str, ...] = ()
    """The names of columns of numbers."""
    starts: NDArray[np.int64] | None = None
    """The first row of each window of numbers."""
    runs: NDArray[np.int64] | None = None
    """The number of the run of rows that each window is in."""
    left_out: int = 0
    """Rows of numbers that are in no window."""

    def __len__(self) -> int:
        return len(self.labels)


def columns_of_texts(spec: DatasetSpec) -> list[str]:
    """Return the columns that are taken as they are written, such as `01` for a class."""
    labels = (spec.label,) if spec.label is not None else _usual_labels(spec)
    named = (*labels, spec.text, spec.column, spec.test_column)
    return [name for name in named if name is not None]


def _usual_labels(spec: DatasetSpec) -> tuple[str, ...]:
    return LABEL_COLUMNS if spec.holds == "images" else (LABEL,)


def label_column(rows: Rows, spec: DatasetSpec) -> str:
    """Return the column of a table that holds the classes."""
    if spec.label is not None:
        return spec.label
    found = next((name for name in _usual_labels(spec) if name in rows.table.column_names), None)
    if found is None:
        texts = ", and dataset.text to that of the texts, if it is to read any,"
        raise DataError(
            f"{rows.where}: which column holds the classes? Set dataset.label"
            f"{texts if spec.holds == 'series' else ''} to one of: "
            f"{', '.join(rows.table.column_names)}"
        )
    return found


def of_rows(
    rows: Rows,
    inputs: Any,
    label: str,
    column: str | None,
    broken: list[Broken],
    spec: DatasetSpec,
) -> Listed:
    """Return the rows of a table with their classes, and the clients that a column names."""
    labels, without_label = rows.labels(label, spec.classes)
    owners, without_owner = _named_by(rows, column, "dataset.column", "client")
    groups, without_group = _named_by(rows, spec.test_column, "dataset.test_column", "group")
    return Listed(
        inputs,
        labels,
        rows.place,
        rows.class_names(label),
        owners,
        [*broken, *without_label, *without_owner, *without_group],
        groups,
    )


def _named_by(
    rows: Rows, column: str | None, setting: str, what: str
) -> tuple[list[str] | None, list[Broken]]:
    """Return the names in a column, if one is asked for, and the rows that have none."""
    if column is None:
        return None, []
    names = rows.names(column, setting)
    without = [
        Broken(rows.place(row), f": no {column}: expected the name of a {what}")
        for row, name in enumerate(names)
        if name is None
    ]
    return [str(name) for name in names], without
