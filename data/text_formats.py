"""Readers of text files: each returns texts and their labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.catalog import DataError, TextFacts
from data.formats import UNKNOWN, reading
from data.parquet import first_column, open_parquet
from plugins.regular_files import require_regular

TEXT_COLUMNS = ("text", "sentence")
LABEL_COLUMNS = ("label",)
Labelled = bool | None
"""Whether texts must have labels, or may have them; None does not look at any."""


class Texts(NamedTuple):
    """Texts and their labels, row by row."""

    texts: list[str]
    labels: NDArray[np.int64]


def read_text_files(files: Sequence[Path], facts: TextFacts) -> Texts:
    """Read parquet or CSV files with a column of texts and one of labels."""
    parts = [read_text_file(file, facts) for file in files]
    texts = [text for part in parts for text in part.texts]
    return Texts(texts, np.concatenate([part.labels for part in parts]))


def read_text_file(file: Path, facts: TextFacts, labelled: Labelled = True) -> Texts:
    """Read a parquet or CSV file; what is wrong is told with the file and the row.

    Rows of CSV are counted as editors do, from 1, which is the header.
    """
    import pyarrow.csv

    if file.suffix != ".csv":
        table = open_parquet(file, lambda schema: _needed(schema, labelled))
        with reading(file):
            return read_text_table(table, facts, labelled)
    with reading(file):
        require_regular(file)
        parsing = pyarrow.csv.ParseOptions(newlines_in_values=True)
        one_by_one = pyarrow.csv.ReadOptions(use_threads=False)  # else it loses count of the rows
        table = pyarrow.csv.read_csv(file, read_options=one_by_one, parse_options=parsing)
        return read_text_table(table, facts, labelled, first_row=2)


def read_text_table(
    table: Any, facts: TextFacts, labelled: Labelled = True, first_row: int = 0
) -> Texts:
    """Read an Arrow table with texts, and labels that are numbers or names of classes."""
    text, *label = _needed(table.schema, labelled)
    texts = table.column(text).to_pylist()
    labels = table.column(label[0]).to_pylist() if label else [UNKNOWN] * len(texts)
    numbers = np.empty(len(labels), np.int64)
    for place, (text, label) in enumerate(zip(texts, labels, strict=True)):
        row = f"row {first_row + place}"
        if not isinstance(text, str) or label is None:
            raise DataError(f"{row} holds the text {text!r} and the label {label!r}")
        try:
            numbers[place] = _label(label, facts)
        except DataError as error:
            raise DataError(f"{row}: {error}") from None
    return Texts(texts, numbers)


def _needed(schema: Any, labelled: Labelled) -> list[str]:
    """Return the column of the texts, and that of the labels if they are looked at."""
    text = first_column(schema, TEXT_COLUMNS)
    there = any(name in schema.names for name in LABEL_COLUMNS)
    if labelled or (labelled is False and there):
        return [text, first_column(schema, LABEL_COLUMNS)]
    return [text]


def _label(label: Any, facts: TextFacts) -> int:
    if not isinstance(label, int):
        return facts.label_of(str(label))
    if not UNKNOWN <= label < facts.num_classes:
        raise DataError(
            f"label {label}: expected 0 to {facts.num_classes - 1}, the classes of {facts.name}"
        )
    return label
