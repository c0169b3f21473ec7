"""Read tables of one's own as Arrow tables: CSV, parquet, JSON lines, and what `datasets` saves.

`read_tables(files)` joins files into one table that still knows the file and the row of each of its
rows. They are counted as the format does: lines of JSON from 1, as an editor has them; rows of
a CSV from 1 with its header, where a text of several lines is in one row and an empty line is none.

Classes and names of a CSV are compared as text: `01` and `1` differ. But among numbers `1.0` is the
whole number 1, since programs write it so where others are missing, and `NA` is a missing number.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from data.catalog import DataError
from data.foreign_files import Broken, raise_if, reading, require_memory
from data.parquet import open_parquet, parquet_schema
from plugins.regular_files import open_regular, require_regular

TABLE_SUFFIXES = (".parquet", ".arrow", ".csv", ".jsonl", ".ndjson", ".json")
"""Of files that hold tables; where a folder has several kinds, the first of these is taken."""
FIRST_ROWS = {".csv": 2, ".jsonl": 1, ".ndjson": 1, ".json": 1}
"""The number of the first row, behind the header of a CSV; that of other files is 0."""
LABEL = "label"
"""The column of the classes where no other is named."""


@dataclass(frozen=True)
class Rows:
    """A table, and where each of its rows is from."""

    table: Any
    files: tuple[Path, ...]
    counts: tuple[int, ...]
    """How many of its rows each file has."""

    def __len__(self) -> int:
        return len(self.table)

    @cached_property
    def _ends(self) -> Any:
        return np.cumsum(self.counts)

    def place(self, row: int) -> str:
        """Return the file and the row, as a message names them."""
        number = self._number_of(row)
        file = self.files[number]
        inside = row - (int(self._ends[number]) - self.counts[number])
        return f"{file}, row {inside + FIRST_ROWS.get(file.suffix.lower(), 0)}"

    def file_of(self, row: int) -> Path:
        """Return the file that a row is in."""
        return self.files[self._number_of(row)]

    def _number_of(self, row: int) -> int:
        return int(np.searchsorted(self._ends, row, side="right"))

    @property
    def where(self) -> Path:
        """Return the file, or the folder of the files."""
        return self.files[0] if len(self.files) == 1 else self.files[0].parent

    def column(self, name: str, setting: str) -> Any:
        """Return a column; `setting` is the key that named it."""
        if name not in self.table.column_names:
            raise DataError(
                f"{self.where}: no column {name!r} ({setting}); the columns are: "
                f"{', '.join(self.table.column_names)}"
            )
        return self.table.column(name)

    def feature(self, name: str) -> dict[str, Any]:
        """Return what Hugging Face's `datasets` wrote of a column into its file, if it did."""
        metadata = (self.table.schema.metadata or {}).get(b"huggingface", b"{}")
        try:
            found = json.loads(metadata)["info"]["features"][name]
        except (ValueError, KeyError, TypeError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def class_names(self, name: str) -> tuple[str, ...] | None:
        """Return the names of a column's classes, where the file tells them."""
        names = self.feature(name).get("names")
        return tuple(map(str, names)) if names and isinstance(names, list) else None

    def labels(
        self, name: str, known: Collection[str] | None = None
    ) -> tuple[list[str | None], list[Broken]]:
        """Return the name of each row's class, and the rows whose class cannot be told.

        A class that is not published is None; so is one that cannot be told. Those that are known
        already tell how a CSV is meant.
        """
        names, found, broken = self.class_names(name), list[str | None](), list[Broken]()
        values = self.column(name, "dataset.label").to_pylist()
        for row, value in enumerate(as_classes(values, known or ()) if self._is_csv else values):
            label = _class_of(value, names)
            if label is None and value != -1:
                broken.append(Broken(self.place(row), f": {_why(name, value, names)}"))
            found.append(label)
        return found, broken

    def names(self, name: str, setting: str) -> list[str | None]:
        """Return the names in a column; None where one is missing."""
        values = self.column(name, setting).to_pylist()
        if self._is_csv:
            return as_names(values)
        return [None if value is None or value == "" else str(value) for value in values]

    @property
    def _is_csv(self) -> bool:
        return self.files[0].suffix.lower() == ".csv"


def read_tables(
    files: Sequence[Path],
    texts: Collection[str] = (),
    needed: Callable[[Rows], Sequence[str]] | None = None,
) -> Rows:
    """Read files into one table; columns of a CSV in `texts` are read as they are written.

    Of parquet only the columns are read that are `needed`, a function of the first file's: it
    raises for those that are missing before any are read.
    """
    import pyarrow as pa

    names = None if needed is None or not _is_parquet(files[0]) else needed(columns_of(files[0]))
    tables = [read_table_file(file, texts, names) for file in files]
    for file, table in zip(files, tables, strict=True):
        _check_same_classes(files[0], tables[0], file, table)
        _check_same_types(files[0], tables[0], file, table)
    with reading(files[0] if len(files) == 1 else files[0].parent):
        joined = pa.concat_tables(tables, promote_options="permissive")
        # Joining drops what `datasets` says of the columns where it differs in a detail.
        joined = joined.replace_schema_metadata(tables[0].schema.metadata)
    return Rows(joined, tuple(files), tuple(map(len, tables)))


def _check_same_classes(first: Path, known: Any, file: Path, table: Any) -> None:
    """Raise where two files of `datasets` number their classes differently."""
    a, b = Rows(known, (first,), (len(known),)), Rows(table, (file,), (len(table),))
    for name in table.column_names:
        if a.class_names(name) != b.class_names(name):
            raise DataError(
                f"{file}: the classes of {name} are {b.class_names(name)}, "
                f"but {a.class_names(name)} in {first}: expected the same, in the same order"
            )


def _check_same_types(first: Path, known: Any, file: Path, table: Any) -> None:
    """Raise where a column holds numbers in one file, and something else in another."""
    import pyarrow as pa

    for name in set(known.column_names) & set(table.column_names):
        a, b = known.schema.field(name), table.schema.field(name)
        try:
            pa.unify_schemas([pa.schema([a]), pa.schema([b])], promote_options="permissive")
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            raise DataError(
                f"{file}: {name} is of type {b.type}, but {a.type} in {first}: expected the same"
            ) from None


def read_table_file(
    file: Path, texts: Collection[str] = (), names: Collection[str] | None = None
) -> Any:
    """Read one file as an Arrow table; of parquet only the columns of these names, if given."""
    if _is_parquet(file):
        _check_names(file, parquet_schema(file))
        return open_parquet(file, names=names)
    suffix = file.suffix.lower()
    if suffix == ".arrow":
        table = _read_arrow(file)
    else:
        table = _read_csv(file, texts) if suffix == ".csv" else _read_json_lines(file)
    _check_names(file, table.schema)
    return table


def columns_of(file: Path) -> Rows:
    """Return the columns of a file, without rows; parquet is not read for that."""
    if _is_parquet(file):
        schema = parquet_schema(file)
        _check_names(file, schema)
    else:
        schema = read_table_file(file).schema
    return Rows(schema.empty_table(), (file,), (0,))


def _is_parquet(file: Path) -> bool:
    return file.suffix.lower() == ".parquet"


def _check_names(file: Path, schema: Any) -> None:
    """Raise where several columns of a file have one name."""
    several = [repr(name) for name, count in Counter(schema.names).items() if count > 1]
    if several:
        raise DataError(
            f"{file}: more than one column has the name {', '.join(several)}: expected each once"
        )


def ordered(names: Iterable[str]) -> tuple[str, ...]:
    """Return classes in order: of numbers if all are whole numbers, else of the alphabet."""
    found = set(names)
    if all(re.fullmatch("-?[0-9]+", name) for name in found):
        return tuple(sorted(found, key=lambda name: (int(name), name)))
    return tuple(sorted(found))


def _class_of(value: Any, names: Sequence[str] | None) -> str | None:
    """Return the name of a class that a table holds: a text, a whole number, or true and false."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():  # whole numbers beside missing ones
        value = int(value)
    if isinstance(value, int):
        if names is None:
            return str(value)
        return names[value] if 0 <= value < len(names) else None
    return (value.strip() or None) if isinstance(value, str) else None


def _why(column: str, value: Any, names: Sequence[str] | None) -> str:
    if value is None or value == "":
        return f"no {column}: expected a class"
    if names is not None:
        return f"{column} is {value!r}: expected 0 to {len(names) - 1}, the classes of the file"
    return f"{column} is {value!r}: expected a text or a whole number"


def _read_arrow(file: Path) -> Any:
    """Read what `Dataset.save_to_disk` writes: a stream of Arrow's."""
    import pyarrow as pa

    with reading(file):
        require_regular(file)
        with pa.memory_map(str(file)) as source:
            batches, taken, reader = [], 0, pa.ipc.open_stream(source)
            for batch in reader:
                batches.append(batch)
                taken += batch.nbytes
                require_memory(file, taken)
            return pa.Table.from_batches(batches, reader.schema)


def _read_csv(file: Path, texts: Collection[str]) -> Any:
    import pyarrow as pa
    import pyarrow.csv

    broken = list[Broken]()

    def skip(row: Any) -> str:
        cells = f"{row.actual_columns} cells: expected {row.expected_columns}"
        broken.append(Broken(f"{file}, row {row.number}", f": {cells}, as the header has"))
        return "skip"

    with reading(file):
        _check_header(file)
        table = pyarrow.csv.read_csv(
            file,
            # In one thread, else it loses count of the rows.
            read_options=pyarrow.csv.ReadOptions(use_threads=False),
            parse_options=pyarrow.csv.ParseOptions(
                newlines_in_values=True, invalid_row_handler=skip
            ),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(texts, pa.string())
            ),
        )
        raise_if(broken)
        return table


def _check_header(file: Path) -> None:
    """Raise where the first line of a CSV is of another encoding, which Arrow does not look at."""
    with open_regular(file) as content:
        header = content.readline()
    try:
        told = "\0" not in header.decode("utf-8")
    except UnicodeDecodeError:
        told = False
    if not told:
        raise DataError(f"{file}: its first line is no text in UTF-8: expected a header that is")


def _read_json_lines(file: Path) -> Any:
    """Read objects, one a line; what a line lacks is missing there."""
    import pyarrow as pa

    rows, broken = list[dict[str, Any]](), list[Broken]()
    with reading(file), open_regular(file, "r") as lines:
        for number, line in enumerate(lines, 1):
            row = _json_object(line)
            if isinstance(row, str):
                broken.append(Broken(f"{file}, row {number}", f": {row}"))
            else:
                rows.append(row)
        raise_if(broken)
        names = dict.fromkeys(name for row in rows for name in row)
        columns = {name: [row.get(name) for row in rows] for name in names}
        return pa.table({name: _array(values) for name, values in columns.items()})


def _json_object(line: str) -> dict[str, Any] | str:
    """Return the object of a line, or what is wrong with it."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:  # of brackets in brackets
        return f"no JSON ({error}): expected an object on each line"
    if isinstance(row, dict):
        return {str(name): value for name, value in row.items()}
    return f'a {type(row).__name__}: expected an object on each line, such as {{"text": ...}}'


def _array(values: list[Any]) -> Any:
    """Return an Arrow column; values of several kinds become texts."""
    import pyarrow as pa

    try:
        return pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):  # of whole numbers of over 64 bits
        return pa.array([None if value is None else str(value) for value in values])


# --- classes and names as a CSV has them


MISSING = frozenset(
    {"", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"}
    | {"N/A", "NA", "NULL", "NaN", "n/a", "nan", "null"}
)
"""Texts that stand for a missing number; among texts, only the first does."""
WHOLE = re.compile(r"[-+]?[0-9]+")
NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
TRUTHS = {"true": "true", "false": "false", "1": "true", "0": "false"}
Written = Sequence[str | None]


def as_names(values: Written) -> list[str | None]:
    """Return the names in a column of texts: as written, None where one is missing.

    Among numbers alone, one that is whole as `1.0` is has the name of the whole number.
    """
    found = [None if value is None else value.strip() for value in values]
    if all(value is None or value in MISSING or NUMBER.fullmatch(value) for value in found):
        return [None if value is None or value in MISSING else _number(value) for value in found]
    return [value or None for value in found]


def as_classes(values: Written, known: Collection[str] = ()) -> list[str | float | None]:
    """Return the classes in a column of texts; one of numbers has whole ones, and broken ones.

    What is written as one of the `known` classes is that class: `NA` may be one, though a column
    of it alone has none that it could tell by itself.
    """
    told, known = _told(as_names(values)), frozenset(known)
    written = [None if value is None else value.strip() for value in values]
    return [text if text in known else value for text, value in zip(written, told, strict=True)]


def _told(names: list[str | None]) -> list[str | float | None]:
    """Return the classes that names tell by themselves."""
    there = {name for name in names if name is not None}
    if there and all(NUMBER.fullmatch(name) for name in there):
        return [name if name is None or WHOLE.fullmatch(name) else float(name) for name in names]
    if there and all(name.lower() in TRUTHS or name in MISSING for name in there):
        return [TRUTHS.get((name or "").lower()) for name in names]
    return list(names)


def _number(text: str) -> str:
    """Return a number as it is written, but for a whole one with a point: that is `1`."""
    if WHOLE.fullmatch(text) or not math.isfinite(float(text)):
        return text
    number = Decimal(text)
    return str(int(number)) if number == number.to_integral_value() else text
