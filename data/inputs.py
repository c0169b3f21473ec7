"""Images to answer for, with or without labels: a folder, an image, parquet or .npz."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.catalog import DataError, DatasetFacts
from data.formats import (
    IMAGE_SUFFIXES,
    LABEL_COLUMNS,
    Split,
    channels_first,
    checked_split,
    decode_images,
    table_images,
)
from data.images import ImageData

UNKNOWN = -1
"""The label of an image that has none."""


@dataclass(frozen=True, eq=False)
class Inputs:
    """Images, and what each is called where they came from."""

    data: ImageData
    names: tuple[str, ...]

    @property
    def labelled(self) -> bool:
        return not bool((self.data.labels == UNKNOWN).any())


def read_inputs(path: Path, facts: DatasetFacts) -> Inputs:
    """The images under a path; their labels if there is a column, an array or a folder of them."""
    if not path.exists():
        raise DataError(f"{path} does not exist")
    images = _files(path, IMAGE_SUFFIXES)
    if images:
        return _read_images(path, images, facts)
    parts = [
        (file, _read_npz(file, facts) if file.suffix == ".npz" else _read_parquet(file, facts))
        for file in _files(path, frozenset({".parquet", ".npz"}))
    ]
    if not parts:
        raise DataError(f"no images in {path}: expected image files, parquet or .npz")
    joined = Split(*map(np.concatenate, zip(*(split for _, split in parts), strict=True)))
    names = (f"{file.name}:{row}" for file, split in parts for row in range(len(split.labels)))
    return Inputs(ImageData.of(joined, facts), tuple(names))


def _files(path: Path, suffixes: frozenset[str]) -> list[Path]:
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    return [file for file in files if file.suffix.lower() in suffixes]


def _read_images(path: Path, files: list[Path], facts: DatasetFacts) -> Inputs:
    split = _split(
        decode_images(files, len(files), facts), _folder_labels(path, files, facts), facts
    )
    names = (str(file.relative_to(path)) if file != path else file.name for file in files)
    return Inputs(ImageData.of(split, facts), tuple(names))


def _folder_labels(path: Path, files: list[Path], facts: DatasetFacts) -> NDArray[np.int64] | None:
    """Labels where all images lie in folders named after classes, below `path`."""
    folders = {file.parent for file in files}
    if path.is_file() or path in folders:
        return None
    try:
        labels = {folder: facts.label_of(folder.name) for folder in folders}
    except DataError:
        return None
    return np.array([labels[file.parent] for file in files])


def _read_parquet(file: Path, facts: DatasetFacts) -> Split:
    import pyarrow.parquet as pq

    table = pq.read_table(file)
    found = next((name for name in LABEL_COLUMNS if name in table.column_names), None)
    labels = None if found is None else table.column(found).to_numpy()
    return _split(table_images(table, facts), labels, facts)


def _read_npz(file: Path, facts: DatasetFacts) -> Split:
    with np.load(file, allow_pickle=False) as archive:
        for images, labels in (("x", "y"), ("x_test", "y_test")):
            if images in archive:
                return _split(archive[images], archive.get(labels), facts)
        raise DataError(f"{file} holds {', '.join(archive.files)}: expected x, and maybe y")


def _split(images: NDArray[Any], labels: NDArray[Any] | None, facts: DatasetFacts) -> Split:
    if labels is not None:
        return checked_split(images, labels, facts)
    return Split(channels_first(images, facts), np.full(len(images), UNKNOWN, np.int64))
