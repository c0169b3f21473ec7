"""Finds the files under a path that hold a data set, and chooses who reads them.

A path is a folder (of parquet files with `train` and `test` in their names; of the four IDX files;
of .npz archives; of class folders, maybe in `train/` and `test/`) or one parquet file or archive.
In a folder of several data sets, the files whose names begin with the data set's are taken.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from data.cache import Fingerprint, fingerprint_of
from data.catalog import DataError
from data.foreign_files import opened_npz
from data.image_files import IMAGE_SUFFIXES, Reader, read_idx, read_image_folder, read_npz
from data.image_tables import fingerprint_of_named, named_by_parquet, read_parquet

VALIDATION = {"val", "valid", "validation", "dev"}

LINES_SUFFIXES = (".tokens", ".tokens.gz", ".txt", ".parquet")
"""Of files that hold a running text."""


@dataclass(frozen=True)
class SplitFiles:
    """The files of a data set; without test files, its test set is yet to be held out."""

    read: Reader
    train: tuple[Path, ...]
    test: tuple[Path, ...]

    def fingerprint(self) -> Fingerprint:
        """Return the key of a cached copy: path, size and time of change of every file."""
        files = (*self.train, *self.test)
        named = named_by_parquet(files) if self.read is read_parquet else ()
        return [*fingerprint_of(files), *fingerprint_of_named(named)]


def locate(path: Path, name: str) -> SplitFiles:
    """Find the files under `path` that hold the data set `name`."""
    if not path.exists():
        raise DataError(f"{path} does not exist: no {name} there")
    for layout in (_parquet, _idx, _npz, _image_folder):
        found = layout(path, name)
        if found is not None:
            return found
    raise DataError(
        f"no images in {path}: expected *train*.parquet and *test*.parquet, the IDX files of MNIST "
        "(train-images-idx3-ubyte, ...), an .npz with x and y, or one folder of images a class"
    )


@dataclass(frozen=True)
class TextFiles:
    """The files of a data set of texts; some are published without the labels of their tests."""

    train: tuple[Path, ...]
    test: tuple[Path, ...]
    validation: tuple[Path, ...]

    def fingerprint(self) -> Fingerprint:
        """Return the key of a cached copy: path, size and time of change of every file."""
        return fingerprint_of((*self.train, *self.test, *self.validation))


def locate_texts(path: Path, name: str) -> TextFiles:
    """Find the parquet or CSV files under `path` that hold the texts of the data set `name`."""
    if not path.exists():
        raise DataError(f"{path} does not exist: no {name} there")
    for suffix in (".parquet", ".csv"):
        files = TextFiles(*_by_split(path, suffix, name))
        if files.train:
            return files
    raise DataError(
        f"no texts in {path}: expected *train*.parquet and *test*.parquet, or *.csv, with columns "
        "text and label"
    )


def locate_language(path: Path, name: str) -> TextFiles:
    """Find the files under `path` that hold the running text `name`: lines, or rows of parquet."""
    if not path.exists():
        raise DataError(f"{path} does not exist: no {name} there")
    for suffix in LINES_SUFFIXES:
        files = TextFiles(*_by_split(path, suffix, name))
        if files.train:
            return files
    raise DataError(
        f"no text in {path}: expected *train*.tokens and *test*.tokens, also .tokens.gz or .txt, "
        "or *train*.parquet and *test*.parquet with a column text"
    )


def _parquet(path: Path, name: str) -> SplitFiles | None:
    train, test, _ = _by_split(path, ".parquet", name)
    return SplitFiles(read_parquet, train, test) if train else None


def _npz(path: Path, name: str) -> SplitFiles | None:
    train, test, _ = _by_split(path, ".npz", name)
    if not train:
        return None
    if not test:
        with opened_npz(train[0]) as archive:
            test = train if "x_test" in archive else ()
    return SplitFiles(read_npz, (_only(train),), (_only(test),) if test else ())


def _by_split(
    path: Path, suffix: str, name: str
) -> tuple[tuple[Path, ...], tuple[Path, ...], tuple[Path, ...]]:
    """Sort files by the word in their names: to train (also without one), test and validate on."""
    if path.is_file():
        return ((path,) if path.name.endswith(suffix) else ()), (), ()
    files = _of_data_set(path.rglob(f"*{suffix}"), name)
    words = {file: set(re.findall("[a-z]+", file.stem.lower())) for file in files}
    train = tuple(file for file in files if "train" in words[file])
    test = tuple(file for file in files if "test" in words[file])
    validation = tuple(file for file in files if words[file] & VALIDATION)
    unsaid = tuple(file for file in files if not words[file] & {"test", *VALIDATION})
    return train or unsaid, test, validation


def _idx(path: Path, name: str) -> SplitFiles | None:
    def pair(split: str) -> tuple[Path, ...]:
        images = _of_data_set(path.glob(f"*{split}-images?idx3-ubyte*"), name)
        labels = _of_data_set(path.glob(f"*{split}-labels?idx1-ubyte*"), name)
        return (_only(images), _only(labels)) if images and labels else ()

    train = pair("train")
    return SplitFiles(read_idx, train, pair("t10k")) if train else None


def _image_folder(path: Path, name: str) -> SplitFiles | None:
    def images(folder: Path) -> tuple[Path, ...]:
        files = folder.glob("*/*")
        return tuple(sorted(file for file in files if file.suffix.lower() in IMAGE_SUFFIXES))

    has_splits = (path / "train").is_dir()
    train = images(path / "train" if has_splits else path)
    beside = ("test", *sorted(VALIDATION)) if has_splits else ()
    test = next((found for name in beside if (found := images(path / name))), ())
    return SplitFiles(read_image_folder, train, test) if train else None


def _of_data_set(files: Iterable[Path], name: str) -> tuple[Path, ...]:
    """Return the files named after the data set, in order; all if none is."""
    found = tuple(sorted(files))
    begins_with_name = re.compile(re.escape(name) + "(?![a-z0-9])")
    named = (file for file in found if begins_with_name.match(file.name.lower().replace("_", "-")))
    return tuple(named) or found


def _only(files: tuple[Path, ...]) -> Path:
    if len(files) > 1:
        raise DataError(
            f"expected one file, found {', '.join(map(str, files))}: name the right one"
        )
    return files[0]
