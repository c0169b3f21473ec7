"""The examples of one's own files, not decoded yet, with the class and the client of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from data.broken import Broken
from data.catalog import DataError
from data.formats import IMAGE_COLUMNS, LABEL_COLUMNS, first_column, opened_npz, reading
from data.numbers import checked_array, number_columns, read_numbers
from data.own_files import OwnFiles, image_files, number_files, table_files
from data.spec import FOLDER, TABLE, DatasetSpec
from data.tables import LABEL, Rows, read_tables, schema_of
from data.windows import cut, windows_of

Purpose = Literal["train", "test", "validation"]


@dataclass(frozen=True)
class Listed:
    """Examples as files hold them, row by row."""

    inputs: Any
    """Files of images, a column of encoded ones or an array of them; texts; or numbers, of tables
    [n, columns, length]."""
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


def own_files(spec: DatasetSpec) -> OwnFiles:
    """Find the files of data of one's own."""
    if spec.path is None:
        raise DataError(f"path is null: expected dataset.path, where the files of {spec.name} are")
    place = Path(spec.path).expanduser().resolve()
    find = {"images": image_files, "series": number_files, "tokens": table_files}[spec.holds]
    return find(place)


def guessed(path: Path) -> str:
    """Return what a path holds: `folder` if it has images, else `table`."""
    found = image_files(path)
    if found.kind == "images" or (found.kind == "archive" and _has_bytes(found.train[0])):
        return FOLDER
    if found.kind == "archive":
        return TABLE
    first = found.train[0]
    try:
        image_column(Rows(schema_of(first).empty_table(), (first,), (0,)))
    except DataError:
        return TABLE
    return FOLDER


def _has_bytes(file: Path) -> bool:
    """Return whether the first array of an archive may be images: others are of larger numbers."""
    with opened_npz(file) as archive:
        name = next((name for name in ("x", "x_train") if name in archive), None)
        return name is None or archive[name].dtype == np.uint8


def listed(files: OwnFiles, purpose: Purpose, spec: DatasetSpec) -> Listed | None:
    """List the examples that are for a purpose; None if there are none.

    Whose they are is told of those to train on, where the files do.
    """
    chosen: Sequence[Path] = getattr(files, purpose)
    column = spec.column if purpose == "train" else None
    if purpose != "train":
        spec = replace(spec, test_column=None)
    if files.kind == "archive":
        found = _archive(files, purpose, column, spec.test_column)
        if found is None or spec.holds != "series":
            return found
        return list_series_archive(found, spec)
    if not chosen:
        return None
    if files.kind == "images":
        return _images(files, chosen, column) if purpose == "train" else _images_to_test(chosen)
    if spec.holds == "images":
        return _image_rows(read_tables(chosen), spec, column)
    if spec.holds == "series":
        return list_series(read_tables(chosen), spec, column)
    texts = [spec.text] if spec.text is not None else []
    return _texts(read_tables(chosen, texts), spec, column)


def _images(files: OwnFiles, chosen: Sequence[Path], column: str | None) -> Listed:
    """List images in folders: CLASS/IMAGE, or CLIENT/CLASS/IMAGE."""
    if column is not None:
        raise DataError(
            f"column is {column!r}, but {files.path} holds folders of images, and no table: "
            "expected null, and dataset.partition=folders if clients have folders of their own"
        )
    depths = [len(file.relative_to(files.root).parts) - 1 for file in chosen]
    broken = [
        Broken(str(file), " lies in no folder: expected the folder of its class")
        for file, depth in zip(chosen, depths, strict=True)
        if depth == 0
    ]
    folders = set(depths) - {0}
    if len(folders) > 1 or folders - {1, 2}:
        deepest = chosen[depths.index(max(depths))]
        raise DataError(
            f"{deepest} lies {max(depths)} folders deep, others {min(folders)}: expected "
            "CLASS/IMAGE everywhere, or CLIENT/CLASS/IMAGE"
        )
    return Listed(
        chosen,
        [file.parent.name for file in chosen],
        lambda row: str(chosen[row]),
        owners=[file.parents[1].name for file in chosen] if folders == {2} else None,
        broken=broken,
    )


def _images_to_test(chosen: Sequence[Path]) -> Listed:
    """List images that lie in the folder of their class, wherever that is."""
    return Listed(chosen, [file.parent.name for file in chosen], lambda row: str(chosen[row]))


def _archive(
    files: OwnFiles, purpose: Purpose, column: str | None, group: str | None
) -> Listed | None:
    """List the arrays of an archive: x and y, or x_train and so on, maybe with one of clients."""
    own: Sequence[Path] = getattr(files, purpose)
    chosen = own or files.train
    if len(chosen) > 1:
        raise DataError(f"expected one archive, found {', '.join(map(str, chosen))}")
    (file,) = chosen
    with opened_npz(file) as archive:
        endings = [f"_{purpose}", *([""] if own else [])]
        ending = next((end for end in endings if {f"x{end}", f"y{end}"} <= {*archive.files}), None)
        if ending is None and purpose != "train":
            return None
        if ending is None:
            raise DataError(
                f"{file} holds {', '.join(archive.files)}: expected x and y, or x_train and y_train"
            )
        images, labels = archive[f"x{ending}"], archive[f"y{ending}"].reshape(-1)
        if len(images) != len(labels):
            raise DataError(f"{len(images)} examples and {len(labels)} labels: expected one each")
        if labels.dtype.kind not in "iubU":
            raise DataError(f"labels of type {labels.dtype}: expected whole numbers or texts")
        names = [str(label).strip() for label in labels.tolist()]
        told = (archive, ending, len(names))
        owners = None if column is None else _archive_names(*told, column, "dataset.column")
        groups = None if group is None else _archive_names(*told, group, "dataset.test_column")
    place = f"{file}, row {{}}".format
    return Listed(images, names, place, owners=owners, groups=groups)


def _archive_names(archive: Any, ending: str, count: int, column: str, setting: str) -> list[str]:
    name = next((each for each in (column, f"{column}{ending}") if each in archive), None)
    if name is None:
        raise DataError(
            f"no array {column!r} ({setting}); the arrays are: {', '.join(archive.files)}"
        )
    found = [str(each) for each in archive[name].reshape(-1).tolist()]
    if len(found) != count:
        raise DataError(f"{name} has {len(found)} entries for {count} examples: expected one each")
    return found


def image_column(rows: Rows) -> str:
    """Return the column of a table that holds images."""
    said = (name for name in rows.table.column_names if rows.feature(name).get("_type") == "Image")
    found = next(said, None)
    with reading(rows.where):
        return found or first_column(rows.table, IMAGE_COLUMNS)


def label_column(rows: Rows, spec: DatasetSpec) -> str:
    """Return the column of a table that holds the classes."""
    if spec.label is not None:
        return spec.label
    usual = LABEL_COLUMNS if spec.holds == "images" else (LABEL,)
    found = next((name for name in usual if name in rows.table.column_names), None)
    if found is None:
        texts = ", and dataset.text to that of the texts, if it is to read any,"
        raise DataError(
            f"{rows.where}: which column holds the classes? Set dataset.label"
            f"{texts if spec.holds == 'series' else ''} to one of: "
            f"{', '.join(rows.table.column_names)}"
        )
    return found


def _image_rows(rows: Rows, spec: DatasetSpec, column: str | None) -> Listed:
    label = label_column(rows, spec)
    images = rows.table.column(image_column(rows))
    return _of_rows(rows, images, label, column, [], spec)


def _texts(rows: Rows, spec: DatasetSpec, column: str | None) -> Listed:
    assert spec.text is not None  # else it is a table of numbers
    texts = rows.column(spec.text, "dataset.text").to_pylist()
    broken = [
        Broken(rows.place(row), f": {spec.text} is {text!r}: expected a text")
        for row, text in enumerate(texts)
        if not isinstance(text, str)
    ]
    return _of_rows(rows, texts, label_column(rows, spec), column, broken, spec)


def list_series(rows: Rows, spec: DatasetSpec, column: str | None, labelled: bool = True) -> Listed:
    """List windows of a table of numbers, each of one class, one file and one owner."""
    label = label_column(rows, spec) if labelled else None
    besides = [name for name in (label, spec.label, spec.column, spec.test_column) if name]
    names = spec.columns or number_columns(rows, besides)
    numbers, broken = read_numbers(rows, names)
    found = Listed(numbers, [None] * len(rows), rows.place, broken=broken)
    if label is not None:
        found = _of_rows(rows, numbers, label, column, broken, spec)
    apart = [name for name in (spec.column, spec.test_column) if name in rows.table.column_names]
    keys = [np.array(rows.table.column(name).to_pylist(), str) for name in apart if name]
    files = np.repeat(np.arange(len(rows.counts)), rows.counts)
    return replace(_in_windows(found, [files, *keys], spec), columns=names)


def list_series_archive(found: Listed, spec: DatasetSpec) -> Listed:
    """List the series of an archive: as they are, or windows of its rows."""
    file = found.place(0).rpartition(", row")[0] if len(found) else ""
    numbers, broken = checked_array(found.inputs, file)
    names = tuple(str(number) for number in range(numbers.shape[-1]))
    found = replace(found, inputs=numbers, broken=[*found.broken, *broken], columns=names)
    if numbers.ndim == 2:
        keys = [np.array(each) for each in (found.owners, found.groups) if each is not None]
        return _in_windows(found, keys, spec)
    if spec.window is not None:
        raise DataError(
            f"{file}: x is of shape {numbers.shape}, series already: expected window null, not "
            f"{spec.window}"
        )
    return replace(found, inputs=np.ascontiguousarray(numbers.transpose(0, 2, 1)))


def _in_windows(found: Listed, keys: Sequence[NDArray[Any]], spec: DatasetSpec) -> Listed:
    """Return the windows of rows, which do not cross a change of class or of another key."""
    window = spec.window or 1
    labels = np.array([str(label) for label in found.labels])
    starts, runs = windows_of(len(found), window, [*keys, labels])
    if len(found) and not len(starts):
        raise DataError(
            f"window is {window}, but no {window} rows from {found.place(0)} on are of one class "
            "and one owner: expected fewer"
        )

    def at_starts(each: Sequence[Any] | None) -> Any:
        return None if each is None else [each[row] for row in starts.tolist()]

    return replace(
        found,
        inputs=cut(found.inputs, starts, window),
        labels=at_starts(found.labels),
        owners=at_starts(found.owners),
        groups=at_starts(found.groups),
        place=lambda number: found.place(int(starts[number])),
        starts=starts,
        runs=runs,
        left_out=len(found) - window * len(starts),
    )


def _of_rows(
    rows: Rows,
    inputs: Any,
    label: str,
    column: str | None,
    broken: list[Broken],
    spec: DatasetSpec,
) -> Listed:
    """Return the rows of a table with their classes, and the clients that a column names."""
    labels, without_label = rows.labels(label)
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
    names = rows.column(column, setting).to_pylist()
    without = [
        Broken(rows.place(row), f": no {column}: expected the name of a {what}")
        for row, name in enumerate(names)
        if name is None or name == ""
    ]
    return [str(name) for name in names], without
