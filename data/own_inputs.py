"""Inputs to answer for, of runs on data of one's own: tables and archives, with or without labels.

Their columns are those of the run, and their classes have the names that they have there.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.broken import raise_if
from data.catalog import DataError
from data.formats import UNKNOWN, opened_npz
from data.image_columns import image_column
from data.image_tables import images_of
from data.listed import Listed, columns_of_texts
from data.own_files import ARCHIVE_SUFFIX
from data.own_source import labels_of, read_inputs_of
from data.parquet import LABEL_COLUMNS
from data.resize import channels_first_of_any
from data.series_listing import array_columns, list_series, list_series_archive
from data.spec import DatasetSpec
from data.tables import LABEL, TABLE_SUFFIXES, Rows, read_tables


class OwnInputs(NamedTuple):
    """Images, series or tokens, their labels (`UNKNOWN` without one), and what each is called."""

    inputs: NDArray[Any]
    labels: NDArray[np.int64]
    names: tuple[str, ...]


def read_own_inputs(path: Path, spec: DatasetSpec, labelled: bool) -> OwnInputs:
    """Read the tables or the archives below a path, and if asked the labels that they have."""
    suffixes = (*([] if spec.holds == "tokens" else [ARCHIVE_SUFFIX]), *TABLE_SUFFIXES)
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    for suffix in suffixes:
        chosen = [file for file in files if file.suffix.lower() == suffix]
        if chosen:
            parts = [_read(file, path, spec, labelled) for file in chosen]
            inputs, labels, names = zip(*parts, strict=True)
            return OwnInputs(_joined(inputs), np.concatenate(labels), sum(names, ()))
    what = "images in folders or in" if spec.holds == "images" else "a table in"
    raise DataError(f"nothing to read in {path}: expected {what} *{', *'.join(suffixes)}")


def _read(file: Path, place: Path, spec: DatasetSpec, labelled: bool) -> OwnInputs:
    if spec.holds == "series":
        found = _series(file, spec, labelled)
    else:
        is_archive = file.suffix == ARCHIVE_SUFFIX
        found = _of_archive(file, spec) if is_archive else _of_table(file, place, spec)
    labels = np.full(len(found), UNKNOWN, np.int64)
    if labelled and None not in found.labels:
        labels = labels_of(found, spec.facts)
    rows = range(len(found)) if found.starts is None else found.starts.tolist()
    names = tuple(f"{file.name}:{row}" for row in rows)
    return OwnInputs(read_inputs_of(found, spec), labels, names)


def _of_archive(file: Path, spec: DatasetSpec) -> Listed:
    with opened_npz(file) as archive:
        ending = next((end for end in ("", "_test") if f"x{end}" in archive), None)
        if ending is None:
            raise DataError(f"{file} holds {', '.join(archive.files)}: expected x, and maybe y")
        images, labels = archive[f"x{ending}"], archive.get(f"y{ending}")
        columns = array_columns(archive, spec, images)
        if spec.holds == "images":
            images = channels_first_of_any(images)
    names = [None] * len(images) if labels is None else list(map(str, labels.reshape(-1).tolist()))
    return Listed(images, names, lambda row: f"{file}, row {row}", columns=columns)


def _of_table(file: Path, place: Path, spec: DatasetSpec) -> Listed:
    inputs: Any
    rows = read_tables([file], columns_of_texts(spec), lambda rows: _needed(rows, spec))
    if spec.text is None:
        inputs = images_of(rows, place)
    else:
        inputs = rows.column(spec.text, "dataset.text").to_pylist()
        missing = next((row for row, text in enumerate(inputs) if not isinstance(text, str)), None)
        if missing is not None:
            raise DataError(f"{rows.place(missing)}: no {spec.text}: expected a text")
    label = _label_in(rows, spec)
    names = [None] * len(rows) if label is None else rows.labels(label, spec.classes)[0]
    return Listed(inputs, names, rows.place)


def _label_in(rows: Rows, spec: DatasetSpec) -> str | None:
    """Return the column of the classes, if a table has one."""
    columns = [spec.label] if spec.label is not None else LABEL_COLUMNS
    return next((name for name in columns if name in rows.table.column_names), None)


def _needed(rows: Rows, spec: DatasetSpec) -> list[str]:
    """Return the columns that are read of a table; raise for inputs that it lacks."""
    inputs = spec.text or image_column(rows)
    rows.column(inputs, "dataset.text")
    label = _label_in(rows, spec)
    return [inputs] if label is None else [inputs, label]


def _series(file: Path, spec: DatasetSpec, labelled: bool) -> Listed:
    """List windows of numbers, each of one class where there are labels to look at."""
    spec = replace(spec, test_column=None)
    if file.suffix == ARCHIVE_SUFFIX:
        found = _of_archive(file, spec)
        labels = found.labels if labelled else [None] * len(found)
        found = list_series_archive(replace(found, labels=labels), spec)
    else:
        rows = read_tables([file], columns_of_texts(spec))
        has_labels = (spec.label or LABEL) in rows.table.column_names
        found = list_series(rows, spec, None, labelled and has_labels)
    raise_if(found.broken)
    return found


def _joined(parts: tuple[NDArray[Any], ...]) -> NDArray[Any]:
    """Join arrays of images, or of tokens that are padded to other lengths."""
    longest = max(part.shape[-1] for part in parts)
    padded = [
        np.pad(part, [(0, 0)] * (part.ndim - 1) + [(0, longest - part.shape[-1])]) for part in parts
    ]
    return np.concatenate(padded)
