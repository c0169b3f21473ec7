"""The inputs to answer for, with or without labels: images in any form, or tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.broken import Broken, raise_if
from data.catalog import DataError, ImageFacts
from data.examples import Examples
from data.formats import (
    IMAGE_SUFFIXES,
    UNKNOWN,
    ImageSplit,
    channels_first,
    checked_split,
    decode_what_can_be,
    opened_npz,
    reading,
)
from data.images import ImageData
from data.own_inputs import read_own_inputs
from data.parquet import (
    IMAGE_COLUMNS,
    LABEL_COLUMNS,
    first_column,
    named_beside,
    open_parquet,
    table_images,
)
from data.series import SeriesData, SeriesSplit
from data.spec import DatasetSpec, image_facts, series_facts, text_facts
from data.text_formats import Labelled, Texts, read_text_file
from data.texts import TextData, TextSplit
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
