"""The examples of one's own files, not decoded yet, with the class and the client of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from data.broken import Broken
from data.catalog import DataError
from data.formats import IMAGE_COLUMNS, LABEL_COLUMNS, first_column, opened_npz, reading
from data.own_files import OwnFiles, image_files, table_files
from data.spec import FOLDER, TABLE, DatasetSpec
from data.tables import LABEL, Rows, read_tables, schema_of

Purpose = Literal["train", "test", "validation"]


@dataclass(frozen=True)
class Listed:
    """Examples as files hold them, row by row."""

    inputs: Any
    """Files of images, a column of encoded ones or an array of them; or texts."""
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

    def __len__(self) -> int:
        return len(self.labels)


def own_files(spec: DatasetSpec) -> OwnFiles:
    """Find the files of data of one's own."""
    if spec.path is None:
        raise DataError(f"path is null: expected dataset.path, where the files of {spec.name} are")
    place = Path(spec.path).expanduser().resolve()
    return image_files(place) if spec.holds == "images" else table_files(place)


def guessed(path: Path) -> str:
    """Return what a path holds: `folder` if it has images, else `table`."""
    found = image_files(path)
    if found.kind != "tables":
        return FOLDER
    first = found.train[0]
    try:
        image_column(Rows(schema_of(first).empty_table(), (first,), (0,)))
    except DataError:
        return TABLE
    return FOLDER


def listed(files: OwnFiles, purpose: Purpose, spec: DatasetSpec) -> Listed | None:
    """List the examples that are for a purpose; None if there are none.

    Whose they are is told of those to train on, where the files do.
    """
    chosen: Sequence[Path] = getattr(files, purpose)
    column = spec.column if purpose == "train" else None
    if files.kind == "archive":
        return _archive(files, purpose, column)
    if not chosen:
        return None
    if files.kind == "images":
        return _images(files, chosen, column) if purpose == "train" else _images_to_test(chosen)
    if spec.holds == "images":
        return _image_rows(read_tables(chosen), spec, column)
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


def _archive(files: OwnFiles, purpose: Purpose, column: str | None) -> Listed | None:
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
            raise DataError(f"{len(images)} images and {len(labels)} labels: expected one each")
        if labels.dtype.kind not in "iubU":
            raise DataError(f"labels of type {labels.dtype}: expected whole numbers or texts")
        names = [str(label).strip() for label in labels.tolist()]
        owners = None if column is None else _archive_owners(archive, column, ending, len(names))
    return Listed(images, names, lambda row: f"{file}, row {row}", owners=owners)


def _archive_owners(archive: Any, column: str, ending: str, count: int) -> list[str]:
    name = next((each for each in (column, f"{column}{ending}") if each in archive), None)
    if name is None:
        raise DataError(
            f"no array {column!r} (dataset.column); the arrays are: {', '.join(archive.files)}"
        )
    found = [str(each) for each in archive[name].reshape(-1).tolist()]
    if len(found) != count:
        raise DataError(f"{name} has {len(found)} entries for {count} images: expected one each")
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
        raise DataError(
            f"{rows.where}: which column holds the classes? Set dataset.label to one of: "
            f"{', '.join(rows.table.column_names)}"
        )
    return found


def _image_rows(rows: Rows, spec: DatasetSpec, column: str | None) -> Listed:
    label = label_column(rows, spec)
    images = rows.table.column(image_column(rows))
    return _of_rows(rows, images, label, column, [])


def _texts(rows: Rows, spec: DatasetSpec, column: str | None) -> Listed:
    if spec.text is None:
        raise DataError(
            f"{rows.where}: which column holds the texts? Set dataset.text to one of: "
            f"{', '.join(rows.table.column_names)}"
        )
    texts = rows.column(spec.text, "dataset.text").to_pylist()
    broken = [
        Broken(rows.place(row), f": {spec.text} is {text!r}: expected a text")
        for row, text in enumerate(texts)
        if not isinstance(text, str)
    ]
    return _of_rows(rows, texts, label_column(rows, spec), column, broken)


def _of_rows(
    rows: Rows, inputs: Any, label: str, column: str | None, broken: list[Broken]
) -> Listed:
    """Return the rows of a table with their classes, and the clients that a column names."""
    labels, without_label = rows.labels(label)
    owners = None if column is None else rows.column(column, "dataset.column").to_pylist()
    without_owner = [
        Broken(rows.place(row), f": no {column}: expected the name of a client")
        for row, owner in enumerate(owners or ())
        if owner is None or owner == ""
    ]
    return Listed(
        inputs,
        labels,
        rows.place,
        rows.class_names(label),
        None if owners is None else [str(owner) for owner in owners],
        [*broken, *without_label, *without_owner],
    )
