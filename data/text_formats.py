"""Readers of text files: each returns texts and their labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.catalog import DataError, TextFacts
from data.formats import UNKNOWN, first_column, open_parquet, reading

TEXT_COLUMNS = ("text", "sentence")
LABEL_COLUMNS = ("label",)


class Texts(NamedTuple):
    """Texts and their labels, row by row."""

    texts: list[str]
    labels: NDArray[np.int64]


def read_text_files(files: Sequence[Path], facts: TextFacts) -> Texts:
    """Parquet or CSV files with a column of texts and one of labels."""
    import pyarrow as pa

    tables = []
    for table in map(open_text_table, files):
        columns = [first_column(table, names) for names in (TEXT_COLUMNS, LABEL_COLUMNS)]
        chosen = table.select(columns).rename_columns(["text", "label"])
        tables.append(chosen.replace_schema_metadata())
    return read_text_table(pa.concat_tables(tables), facts)


def open_text_table(file: Path) -> Any:
    """An Arrow table of a parquet or a CSV file."""
    import pyarrow.csv

    if file.suffix != ".csv":
        return open_parquet(file)
    with reading(file):
        options = pyarrow.csv.ParseOptions(newlines_in_values=True)
        return pyarrow.csv.read_csv(file, parse_options=options)


def read_text_table(table: Any, facts: TextFacts, labelled: bool = True) -> Texts:
    """An Arrow table with texts, and labels that are numbers or names of classes."""
    texts = table.column(first_column(table, TEXT_COLUMNS)).to_pylist()
    if labelled or set(LABEL_COLUMNS) & set(table.column_names):
        labels = table.column(first_column(table, LABEL_COLUMNS)).to_pylist()
    else:
        labels = [UNKNOWN] * len(texts)
    for row, (text, label) in enumerate(zip(texts, labels, strict=True)):
        if not isinstance(text, str) or label is None:
            raise DataError(f"row {row} holds the text {text!r} and the label {label!r}")
    return Texts(texts, np.array([_label(label, facts) for label in labels], np.int64))


def _label(label: Any, facts: TextFacts) -> int:
    if not isinstance(label, int):
        return facts.label_of(str(label))
    if not UNKNOWN <= label < facts.num_classes:
        raise DataError(
            f"label {label}: expected 0 to {facts.num_classes - 1}, the classes of {facts.name}"
        )
    return label
