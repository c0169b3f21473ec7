"""Finds the files of data of one's own, sorted by what they are for: training, tests, validation.

Images lie in one folder a class, or in one folder a client with one folder a class in each; maybe
below `train` and `test`, unless a table beside the folders names them. Tables and archives say in
their names or folders what they are for.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from data.cache import Fingerprint, fingerprint_of
from data.catalog import DataError
from data.image_files import IMAGE_SUFFIXES
from data.image_tables import may_hold_images
from data.locate import VALIDATION
from data.tables import TABLE_SUFFIXES

FileKind = Literal["images", "archive", "tables"]
ARCHIVE_SUFFIX = ".npz"
HUB_NOTES = frozenset(
    {"dataset_dict.json", "dataset_info.json", "dataset_infos.json", "state.json"}
)
"""Files that Hugging Face's libraries write beside data."""


@dataclass(frozen=True)
class OwnFiles:
    """The files of data of one's own; without test files, its test set is yet to be held out."""

    kind: FileKind
    path: Path
    train: tuple[Path, ...]
    test: tuple[Path, ...] = ()
    validation: tuple[Path, ...] = ()
    others: Counter[str] = field(default_factory=Counter)
    """How many files of other kinds lie there, by their suffix: nobody reads them."""
    empty: tuple[str, ...] = ()
    """Folders beside those of the classes that hold no images."""

    @property
    def root(self) -> Path:
        """Return the folder below which the images to train on lie."""
        below = self.path / "train"
        return below if below.is_dir() else self.path

    def fingerprint(self) -> Fingerprint:
        """Return the key of a cached copy: path, size and time of change of every file."""
        files = fingerprint_of((*self.train, *self.test, *self.validation))
        return [(str(self.root), len(self.train), len(self.test)), *files]


def image_files(path: Path) -> OwnFiles:
    """Find images: files in folders, .npz archives, or tables, which may have a column of them."""
    found = _found(path, _image_folders, _archives, _tables)
    if found is None:
        raise DataError(
            f"no images and no tables in {path}: expected one folder of images a class, an .npz "
            f"with x and y, or files such as *{', *'.join(TABLE_SUFFIXES)}"
        )
    return found


def table_files(path: Path) -> OwnFiles:
    """Find the files of a table, all of one kind."""
    found = _found(path, _tables)
    if found is None:
        raise DataError(f"no table in {path}: expected files such as *{', *'.join(TABLE_SUFFIXES)}")
    return found


def number_files(path: Path) -> OwnFiles:
    """Find the files of a table of numbers: archives of arrays, or tables."""
    return _found(path, _archives) or table_files(path)


def _found(path: Path, *layouts: Callable[[Path], OwnFiles | None]) -> OwnFiles | None:
    """Return the files of the first layout that there is."""
    if not path.exists():
        raise DataError(f"{path} does not exist")
    return next((found for layout in layouts if (found := layout(path)) is not None), None)


def _image_folders(path: Path) -> OwnFiles | None:
    if path.is_file():
        return None
    has_splits = (path / "train").is_dir()
    root = path / "train" if has_splits else path
    train, others = _images_below(root)
    if not train:
        return None
    tables = _tables(path)
    if tables and tables.train[0].parent == path and may_hold_images(tables.train[0]):
        return tables  # images/1.png beside train.csv: these folders are no classes
    held = {file.relative_to(root).parts[0] for file in train}
    _check_no_parts(root, held)
    beside_them = (each for each in root.iterdir() if each.is_dir() and each.name[0] != ".")
    empty = tuple(sorted(each.name for each in beside_them if each.name not in held))
    beside = {name: path / name for name in ("test", *sorted(VALIDATION)) if has_splits}
    parts = {name: _images_below(folder)[0] for name, folder in beside.items() if folder.is_dir()}
    test = parts.pop("test", ())
    validation = next((files for files in parts.values() if files), ())
    return OwnFiles("images", path, train, test, validation, others, empty)


PARTS = frozenset({"train", "training", "test", "testing", *VALIDATION})


def _check_no_parts(root: Path, folders: set[str]) -> None:
    """Raise where folders of clients or classes seem to be for training and for tests."""
    parts = sorted(name for name in folders if name.lower() in PARTS)
    if len(parts) > 1:
        raise DataError(
            f"{root} has the folders {', '.join(parts)}, which would be taken for clients or "
            "classes: name that to train on `train`, and that to test on `test`"
        )


def _images_below(folder: Path) -> tuple[tuple[Path, ...], Counter[str]]:
    """Return the images below a folder, in order, and how many files of other suffixes."""
    files = list(_visible(folder))
    images = tuple(sorted(file for file in files if file.suffix.lower() in IMAGE_SUFFIXES))
    suffixes = (file.suffix.lower() for file in files)
    return images, Counter(suffix for suffix in suffixes if suffix not in IMAGE_SUFFIXES)


def _archives(path: Path) -> OwnFiles | None:
    if path.is_file():
        return OwnFiles("archive", path, (path,)) if path.suffix == ARCHIVE_SUFFIX else None
    files = [file for file in _visible(path) if file.suffix == ARCHIVE_SUFFIX]
    return _by_purpose("archive", path, files)


def _tables(path: Path) -> OwnFiles | None:
    if path.is_file():
        is_table = path.suffix.lower() in TABLE_SUFFIXES
        return OwnFiles("tables", path, (path,)) if is_table else None
    files = [file for file in _visible(path) if file.name not in HUB_NOTES]
    for suffix in TABLE_SUFFIXES:
        of_kind = (file for file in files if file.suffix.lower() == suffix)
        found = _by_purpose("tables", path, of_kind)
        if found is not None:
            return found
    return None


def _visible(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, but for hidden ones and what `datasets` keeps for itself."""
    seen = set[str]()  # a link may lead to a folder above it
    for place, folders, names in os.walk(folder, onerror=_refuse, followlinks=True):
        if (real := os.path.realpath(place)) in seen:
            folders.clear()
            continue
        seen.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(place, name) for name in names if not name.startswith((".", "cache-")))


def _refuse(error: OSError) -> None:
    """Raise for a folder that cannot be listed: a class or a client would be missing in silence."""
    raise DataError(f"{error.filename} cannot be read: {error.strerror}")


def _by_purpose(kind: FileKind, path: Path, files: Iterable[Path]) -> OwnFiles | None:
    """Sort files by the words in their names and folders; those without one are to train on."""
    found = sorted(files)
    purposes = {file: _purpose(file.relative_to(path)) for file in found}
    train, test, validation, unsaid = (
        tuple(file for file in found if purposes[file] == purpose)
        for purpose in ("train", "test", "validation", None)
    )
    return OwnFiles(kind, path, train or unsaid, test, validation) if train or unsaid else None


def _purpose(inside: Path) -> str | None:
    """Return the one purpose of a file: its name says it, else the folder next to it that does.

    Where one name has several such words (`train_val.csv`), `train` is the one that counts.
    """
    for name in (inside.stem, *(folder.name for folder in inside.parents)):
        words = set(re.findall("[a-z]+", name.lower()))
        if words & {"train", "test", *VALIDATION}:
            return "train" if "train" in words else "test" if "test" in words else "validation"
    return None
