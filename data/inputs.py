"""Read the inputs to answer for, with or without labels: images in any form, or tables.

Tables and archives of a run on data of one's own have the run's columns, and its names of classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.catalog import DataError, ImageFacts
from data.examples import (
    UNKNOWN,
    Examples,
    ImageData,
    ImageSplit,
    SeriesData,
    SeriesSplit,
    TextData,
    TextSplit,
)
from data.foreign_files import Broken, opened_npz, raise_if, reading
from data.image_files import (
    IMAGE_SUFFIXES,
    channels_first,
    channels_first_of_any,
    checked_split,
    decode_what_can_be,
)
from data.image_tables import (
    IMAGE_COLUMNS,
    LABEL_COLUMNS,
    image_column,
    images_of,
    named_beside,
    table_images,
)
from data.listed import Listed, columns_of_texts
from data.number_tables import array_columns, list_series, list_series_archive
from data.own_files import ARCHIVE_SUFFIX
from data.own_source import labels_of, read_inputs_of
from data.parquet import first_column, open_parquet
from data.spec import DatasetSpec, image_facts, series_facts, text_facts
from data.tables import LABEL, TABLE_SUFFIXES, Rows, read_tables
from data.text_files import Labelled, Texts, read_text_file
from data.tokens import encode


@dataclass(frozen=True, eq=False)
class Inputs:
    """Images, series or texts, and what each is called where they came from."""

    data: Examples
    names: tuple[str, ...]
    broken: tuple[Broken, ...] = ()
    """Images that cannot be decoded: they are not among the data."""

    @property
    def labelled(self) -> bool:
        return not bool((self.data.labels == UNKNOWN).any())


def read_inputs(path: Path, spec: DatasetSpec) -> Inputs:
    """Read the inputs under a path, and their labels from a column, an array or folders, if any.

    Broken ones among image files are left out, unless all are.
    """
    if not path.exists():
        raise DataError(f"{path} does not exist")
    if _in_tables_of_its_own(path, spec):
        return _read_own(path, spec, labelled=True)
    if spec.holds == "tokens":
        return _read_texts(path, spec)
    return _read_images(path, image_facts(spec))


def read_unlabelled(path: Path, spec: DatasetSpec) -> Examples:
    """Read the inputs under a path without a look at labels; images may have any size."""
    if not path.exists():
        raise DataError(f"{path} does not exist")
    if _in_tables_of_its_own(path, spec):
        return _read_own(path, spec, labelled=False).data
    if spec.holds == "tokens":
        return _read_texts(path, spec, labelled=None).data
    facts = image_facts(spec)
    facts = replace(facts, short_side=facts.short_side or facts.image_size * 8 // 7)
    found = _read_images(path, facts, labelled=False)
    raise_if(found.broken)
    return found.data


def _in_tables_of_its_own(path: Path, spec: DatasetSpec) -> bool:
    """Return whether a run on data of one's own finds no image files here: these are all alike."""
    return spec.is_own and (spec.holds != "images" or not _files(path, IMAGE_SUFFIXES))


def _read_own(path: Path, spec: DatasetSpec, labelled: bool) -> Inputs:
    inputs, labels, names = read_own_inputs(path, spec, labelled)
    if spec.holds == "images":
        return Inputs(ImageData.of(ImageSplit(inputs, labels), image_facts(spec)), names)
    if spec.holds == "series":
        return Inputs(SeriesData.of(SeriesSplit(inputs, labels), series_facts(spec)), names)
    return Inputs(TextData.of(TextSplit(inputs, labels), text_facts(spec)), names)


def _read_texts(path: Path, spec: DatasetSpec, labelled: Labelled = False) -> Inputs:
    facts = text_facts(spec)
    parts = [
        (file, read_text_file(file, facts, labelled))
        for file in _files(path, frozenset({".parquet", ".csv"}))
    ]
    if not parts:
        raise DataError(f"no texts in {path}: expected parquet or .csv with a column of texts")
    texts = [text for _, part in parts for text in part.texts]
    labels = np.concatenate([part.labels for _, part in parts])
    tokens = encode(texts, spec.tokenizer, spec.max_tokens)
    return Inputs(TextData.of(TextSplit(tokens, labels), facts), _rows_of(parts))


def _read_images(path: Path, facts: ImageFacts, labelled: bool = True) -> Inputs:
    """Read images, and what labels they have unless those are not to be looked at."""
    images = _files(path, IMAGE_SUFFIXES)
    if images:
        return _read_image_files(path, images, facts, labelled)
    parts = [
        (file, (_read_npz if file.suffix == ".npz" else _read_parquet)(file, facts, labelled))
        for file in _files(path, frozenset({".parquet", ".npz"}))
    ]
    if not parts:
        raise DataError(f"no images in {path}: expected image files, parquet or .npz")
    joined = ImageSplit(*map(np.concatenate, zip(*(split for _, split in parts), strict=True)))
    return Inputs(ImageData.of(joined, facts), _rows_of(parts))


def _rows_of(parts: Sequence[tuple[Path, ImageSplit | Texts]]) -> tuple[str, ...]:
    return tuple(f"{file.name}:{row}" for file, part in parts for row in range(len(part.labels)))


def _files(path: Path, suffixes: frozenset[str]) -> list[Path]:
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    return [file for file in files if file.suffix.lower() in suffixes]


def _read_image_files(path: Path, files: list[Path], facts: ImageFacts, labelled: bool) -> Inputs:
    labels = _folder_labels(path, files, facts) if labelled else None
    images, kept, broken = decode_what_can_be(files, len(files), facts)
    if not kept.any():
        raise_if(broken)
    split = _split(images, None if labels is None else labels[kept], facts)
    names = (str(file.relative_to(path)) if file != path else file.name for file in files)
    return Inputs(ImageData.of(split, facts), tuple(compress(names, kept)), tuple(broken))


def _folder_labels(path: Path, files: list[Path], facts: ImageFacts) -> NDArray[np.int64] | None:
    """Return the labels where all images lie in folders named after classes, below `path`."""
    folders = {file.parent for file in files}
    if path.is_file() or path in folders:
        return None
    try:
        labels = {folder: facts.label_of(folder.name) for folder in folders}
    except DataError:
        return None
    return np.array([labels[file.parent] for file in files])


def _read_parquet(file: Path, facts: ImageFacts, labelled: bool) -> ImageSplit:
    table = open_parquet(file, _image_and_any_label)
    found = next((name for name in LABEL_COLUMNS if name in table.column_names), None)
    labels = table.column(found).to_numpy() if labelled and found is not None else None
    with reading(file):
        named = named_beside([file], [len(table)])
        return _split(table_images(table, facts, named), labels, facts)


def _image_and_any_label(schema: Any) -> list[str]:
    return [first_column(schema, IMAGE_COLUMNS), *(n for n in LABEL_COLUMNS if n in schema.names)]


def _read_npz(file: Path, facts: ImageFacts, labelled: bool) -> ImageSplit:
    with opened_npz(file) as archive:
        for images, labels in (("x", "y"), ("x_test", "y_test")):
            if images in archive:
                return _split(archive[images], archive.get(labels) if labelled else None, facts)
        raise DataError(f"{file} holds {', '.join(archive.files)}: expected x, and maybe y")


def _split(images: NDArray[Any], labels: NDArray[Any] | None, facts: ImageFacts) -> ImageSplit:
    if labels is not None:
        return checked_split(images, labels, facts)
    return ImageSplit(channels_first(images, facts), np.full(len(images), UNKNOWN, np.int64))


# --- tables and archives of runs on data of one's own


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
