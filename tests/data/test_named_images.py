"""Tables that name images by path: where they may lie, and what is told of those that do not."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from data import own_source, splits
from data.catalog import DataError
from data.digest import digest_of
from data.foreign_files import BrokenFilesError
from data.inputs import read_inputs
from data.listing import guessed
from data.overview import broken_in
from data.spec import DatasetSpec
from data.splits import load_images, splits_of
from tests.support.own_files import photos, write_csv, write_photo, write_photos

LABELS = ("cat", "dog", "cat", "dog")
Write = Callable[[Path, list[str]], Path]


def write_texts(folder: Path, paths: list[str]) -> Path:
    rows = [{"image": path, "label": LABELS[n % 4]} for n, path in enumerate(paths)]
    return write_csv(folder / "images.csv", rows)


def write_structs(folder: Path, paths: list[str]) -> Path:
    """Write the column of an `Image` of Hugging Face whose bytes are elsewhere."""
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    images: list[Any] = [{"bytes": None, "path": path} for path in paths]
    table = {"image": pa.array(images, kind), "label": [LABELS[n % 4] for n in range(len(paths))]}
    pq.write_table(pa.table(table), folder / "images.parquet")
    return folder / "images.parquet"


@pytest.fixture(params=[write_texts, write_structs])
def write(request: pytest.FixtureRequest) -> Write:
    found: Write = request.param
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four images below a folder, of which the first and the third are darker; one is beside it."""
    for number in range(4):
        write_photo(tmp_path / "data" / "shots" / f"{number}.png", (50 + 100 * (number % 2),))
    write_photo(tmp_path / "secret.png", (99,))
    return tmp_path / "data"


INSIDE = [f"shots/{number}.png" for number in range(4)]


def of_train(spec: DatasetSpec) -> list[int]:
    images: Any = splits_of(spec).train.images  # type: ignore[union-attr]
    return sorted(images[:, 0, 0, 0].tolist())


def test_paths_are_relative_to_the_table_wherever_one_is(
    folder: Path, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = write(folder, [*INSIDE[:2], str(folder / INSIDE[2]), f"shots/../{INSIDE[3]}"])
    assert of_train(photos(table)) == [50, 150]


def test_an_image_that_has_changed_is_read_again(folder: Path, write: Write) -> None:
    table = write(folder, INSIDE)
    assert photos(table).mean == pytest.approx((100 / 255,), abs=1e-6)
    for name in INSIDE:
        write_photo(folder / name, (200,))
    own_source._arrays.cache_clear()  # another process
    assert photos(table).mean == pytest.approx((200 / 255,), abs=1e-6)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("../secret.png", r"names \.\./secret\.png, which is outside of .*/data: expected an"),
        ("/etc/hostname", r"names /etc/hostname, which is outside of .*/data: expected"),
        ("link.png", r"names link\.png, which is outside of .*/data: expected"),
        ("away/secret.png", r"names away/secret\.png, which is outside of .*/data: expected"),
        ("shots/none.png", r"names shots/none\.png, but .*/data/shots/none\.png is no file"),
        ("shots", r"names shots, but .*/data/shots is no file"),
        ("pipe.png", r"names pipe\.png, but .*/pipe\.png is no file"),
    ],
)
def test_what_is_missing_or_outside_is_told_with_file_and_row(
    folder: Path, write: Write, path: str, says: str
) -> None:
    """Links are followed before it is asked where an image is, and nothing waits for a pipe."""
    (folder / "link.png").symlink_to(folder.parent / "secret.png")
    (folder / "away").symlink_to(folder.parent)
    os.mkfifo(folder / "pipe.png")
    table = write(folder, [*INSIDE, path, path])
    first = 2 if table.suffix == ".csv" else 0
    found = broken_in(DatasetSpec("folder", str(table)))
    assert len(found) == 2
    for row, broken in zip((4, 5), found, strict=True):
        assert re.fullmatch(rf"{re.escape(str(table))}, row {row + first} {says}.*", str(broken))
    with pytest.raises(BrokenFilesError, match=f"row {4 + first} {says}.*; and 1 more"):
        photos(table, image_size=8, channels=1)


def test_what_to_answer_for_is_read_by_the_same_rule(folder: Path, write: Write) -> None:
    spec = photos(write(folder, INSIDE))
    answered = read_inputs(write(folder, INSIDE[:2]), spec)
    assert answered.data.labels.tolist() == [0, 1]
    for path, says in (("../secret.png", "is outside of"), ("none.png", "is no file")):
        with pytest.raises(DataError, match=rf"images\.\w+, row \d names {path}, .*{says}"):
            read_inputs(write(folder, [INSIDE[0], path]), spec)


@pytest.mark.parametrize("path", ["none.png", "/dev/zero", "../../secret.png", "pipe.png"])
def test_a_table_that_is_not_read_may_name_anything(folder: Path, path: str) -> None:
    """A table that comes with a test table needs no table for validation."""
    for part in ("train", "test", "validation"):
        (folder / part).mkdir()
        write_texts(folder / part, [f"../{name}" for name in INSIDE])
    os.mkfifo(folder / "validation" / "pipe.png")
    write_texts(folder / "validation", [path, path])
    before = digest_of(photos(folder))
    write_photo(folder.parent / "secret.png", (7,))
    assert digest_of(photos(folder)) == before
    write_photo(folder / INSIDE[0], (7,))
    own_source._arrays.cache_clear()  # another process
    assert digest_of(photos(folder)).content != before.content


@pytest.mark.parametrize("images", ["images", "train_images", "images/all", ""])
def test_a_table_beside_the_images_that_it_names_goes_before_their_folders(
    tmp_path: Path, images: str
) -> None:
    """Their folders would be classes of another name, or one, or none."""
    names = [str(Path(images, f"{number}.png")) for number in range(4)]
    for number, name in enumerate([*names, "test_images/9.png"]):
        write_photo(tmp_path / name, (50 + number,))
    write_texts(tmp_path, names).rename(tmp_path / "train.csv")
    write_texts(tmp_path, ["test_images/9.png"]).rename(tmp_path / "test.csv")
    spec = photos(tmp_path)
    assert guessed(tmp_path) == "folder"
    assert spec.classes == ("cat", "dog")
    assert of_train(spec) == [50, 51, 52, 53]
    assert len(splits_of(spec).test.labels) == 1


@pytest.mark.parametrize("notes", ["file,kind\n1,2\n", "image,kind\n1,2\n", "image,label\n1\n"])
def test_other_tables_beside_folders_of_images_change_nothing(tmp_path: Path, notes: str) -> None:
    """It is about something else, has numbers for images, or is broken."""
    write_photos(tmp_path, {"cat": 4, "dog": 4})
    (tmp_path / "notes.csv").write_text(notes, encoding="utf-8")
    assert photos(tmp_path).classes == ("cat", "dog")


def test_tables_of_the_catalogue_go_by_it_too(tmp_path: Path) -> None:
    """Of MNIST, an image that changes is read again; none is opened outside of the folder."""
    (folder := tmp_path / "mnist").mkdir()
    for number in range(10):
        Image.new("L", (28, 28), 10 * number).save(folder / f"{number}.png")
    Image.new("L", (28, 28)).save(tmp_path / "secret.png")
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])

    def write(last: str) -> None:
        names = [*(f"{number % 10}.png" for number in range(19)), last]
        images: list[Any] = [{"bytes": None, "path": name} for name in names]
        table = pa.table({"image": pa.array(images, kind), "label": np.arange(20) % 2})
        pq.write_table(table, folder / "train.parquet")

    def brightest() -> int:
        splits._images.cache_clear()
        loaded = load_images(DatasetSpec("mnist", str(folder)))
        return int(max(split.images.max() for split in loaded))

    write("9.png")
    assert brightest() == 90
    Image.new("L", (28, 28), 255).save(folder / "9.png")
    assert brightest() == 255
    write("../secret.png")
    with pytest.raises(DataError, match=r"row 19 names \.\./secret\.png, which is outside of"):
        brightest()


def test_images_in_the_table_itself_are_taken_whatever_they_are_called(folder: Path) -> None:
    content = (folder / INSIDE[1]).read_bytes()
    images: list[Any] = [{"bytes": content, "path": "../secret.png"} for _ in range(4)]
    table = pa.table({"image": images, "label": list(LABELS)})
    pq.write_table(table, folder / "images.parquet")
    assert of_train(photos(folder / "images.parquet")) == [150, 150]
