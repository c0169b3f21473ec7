"""Read labelled texts: of files, or of the docstrings of installed libraries."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.catalog import DataError, TextFacts
from data.examples import UNKNOWN
from data.foreign_files import reading
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


# --- docstrings, a data set that needs no download: which library is each of?


FEWEST_WORDS = 6
PER_LIBRARY = 600
"""So many are read; the few that occur twice are kept once."""
DISTRIBUTIONS = {"sklearn": "scikit-learn"}
"""The names by which libraries are installed, where that is not the imported one."""


def read_docstrings(facts: TextFacts) -> Texts:
    """Read as many texts of each library, which are the data set's classes."""
    texts: list[str] = []
    labels: list[int] = []
    for label, library in enumerate(facts.classes):
        found = dict.fromkeys(islice(_paragraphs(library), PER_LIBRARY))
        texts += found
        labels += [label] * len(found)
    return Texts(texts, np.array(labels))


def versions(facts: TextFacts) -> list[str]:
    """Return the versions that the texts depend on."""
    return [version(DISTRIBUTIONS.get(library, library)) for library in facts.classes]


def _paragraphs(library: str) -> Iterator[str]:
    """Yield the first paragraph of each docstring of some length, as one line."""
    spec = find_spec(library)
    if spec is None or not spec.submodule_search_locations:
        raise DataError(f"the docstrings of {library} are not there: it is not installed")
    root = Path(spec.submodule_search_locations[0])
    paths = (file.relative_to(root).as_posix() for file in root.rglob("*.py"))
    for path in sorted((path for path in paths if "test" not in path), key=_mixed):
        for node in ast.walk(ast.parse((root / path).read_bytes())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                first, *_ = (ast.get_docstring(node) or "").split("\n\n")
                if len(words := first.split()) >= FEWEST_WORDS:
                    yield " ".join(words)


def _mixed(path: str) -> str:
    """Return an order that depends on the names alone, and mixes the parts of a library."""
    return hashlib.sha256(path.encode()).hexdigest()
