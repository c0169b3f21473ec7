"""The examples of one's own files, not decoded yet, with the class and the client of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from data.catalog import DataError
from data.foreign_files import Broken, opened_npz
from data.homes import with_home
from data.image_files import channels_first_of_any
from data.image_tables import image_column, images_of
from data.listed import Listed, columns_of_texts, label_column, of_rows
from data.number_tables import array_columns, list_series, list_series_archive, may_be_numbers
from data.own_files import OwnFiles, image_files, number_files, table_files
from data.spec import FOLDER, TABLE, DatasetSpec
from data.tables import Rows, columns_of, read_tables

Purpose = Literal["train", "test", "validation"]


def own_files(spec: DatasetSpec) -> OwnFiles:
    """Find the files of data of one's own."""
    if spec.path is None:
        raise DataError(f"path is null: expected dataset.path, where the files of {spec.name} are")
    place = with_home(spec.path).resolve()
    find = {"images": image_files, "series": number_files, "tokens": table_files}[spec.holds]
    return find(place)


def guessed(path: Path) -> str:
    """Return the kind of data in a path: `folder` if it has images, else `table`."""
    found = image_files(path)
    if found.kind == "images" or (found.kind == "archive" and _has_bytes(found.train[0])):
        return FOLDER
    if found.kind == "archive":
        return TABLE
    first = found.train[0]
    try:
        image_column(columns_of(first))
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
        found = _archive(files, purpose, column, spec)
        if found is None or spec.holds != "series":
            return found
        return list_series_archive(found, spec)
    if not chosen:
        return None
    if files.kind == "images":
        return (
            _images(files, chosen, column, spec) if purpose == "train" else _images_to_test(chosen)
        )
    rows = read_tables(chosen, columns_of_texts(spec), lambda rows: _needed(rows, spec, column))
    if spec.holds == "images":
        return list_images(rows, files.path, spec, column)
    return (list_series if spec.holds == "series" else _texts)(rows, spec, column)


def _needed(rows: Rows, spec: DatasetSpec, column: str | None) -> list[str]:
    """Return the columns that are read of a table; raise for one that it lacks."""
    label = label_column(rows, spec)
    if spec.holds == "images":
        inputs = [image_column(rows)]
    elif spec.text is not None:
        inputs = [spec.text]
        rows.column(spec.text, "dataset.text")
    else:
        inputs = list(spec.columns or may_be_numbers(rows))
    named = {"dataset.label": label, "dataset.column": column}
    for setting, name in (named | {"dataset.test_column": spec.test_column}).items():
        if name is not None:
            rows.column(name, setting)
    return [name for name in (*inputs, label, spec.column, spec.test_column) if name is not None]


def _images(
    files: OwnFiles, chosen: Sequence[Path], column: str | None, spec: DatasetSpec
) -> Listed:
    """List images in folders: CLASS/IMAGE, or CLIENT/CLASS/IMAGE."""
    if column is not None:
        raise DataError(
            f"column is {column!r}, but {files.path} holds folders of images, and no table: "
            "expected null, and dataset.partition=folders if clients have folders of their own"
        )
    if spec.label is not None and not spec.is_known:
        raise DataError(
            f"dataset.label is {spec.label}, but {files.path} holds folders of images, and no "
            "table: expected null, the folders are the classes"
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
    files: OwnFiles, purpose: Purpose, column: str | None, spec: DatasetSpec
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
        if spec.holds == "images":
            images = channels_first_of_any(images)
        names = [str(label).strip() for label in labels.tolist()]
        told = (archive, ending, len(names))
        columns = array_columns(archive, spec, images)
        owners = None if column is None else _archive_names(*told, column, "dataset.column")
        group = spec.test_column
        groups = None if group is None else _archive_names(*told, group, "dataset.test_column")
    place = f"{file}, row {{}}".format
    return Listed(images, names, place, owners=owners, groups=groups, columns=columns)


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


def _texts(rows: Rows, spec: DatasetSpec, column: str | None) -> Listed:
    assert spec.text is not None  # else it is a table of numbers
    texts = rows.column(spec.text, "dataset.text").to_pylist()
    broken = [
        Broken(rows.place(row), f": {spec.text} is {text!r}: expected a text")
        for row, text in enumerate(texts)
        if not isinstance(text, str)
    ]
    return of_rows(rows, texts, label_column(rows, spec), column, broken, spec)


def list_images(rows: Rows, place: Path, spec: DatasetSpec, column: str | None) -> Listed:
    """List the rows of a table of images that was found in a place."""
    return of_rows(rows, images_of(rows, place), label_column(rows, spec), column, [], spec)
