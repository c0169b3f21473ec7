"""Broken data files end in one sentence that names the file."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from PIL import Image

from data.catalog import IMAGES, DataError
from data.formats import read_idx, read_npz
from data.images import ImageData
from data.inputs import read_inputs
from data.locate import locate
from data.parquet import read_parquet
from data.spec import DatasetSpec

FACTS = IMAGES["cifar10"]
SPEC = DatasetSpec("cifar10")
PIXELS = np.zeros((2, 32, 32, 3), np.uint8)


def png() -> bytes:
    content = io.BytesIO()
    Image.fromarray(PIXELS[0]).save(content, "png")
    return content.getvalue()


def write_npz(file: Path, images: Any = PIXELS, labels: Any = (0, 1)) -> None:
    np.savez(file, x=images, y=np.array(labels))


def write_parquet(file: Path, images: list[Any], labels: list[Any]) -> None:
    pq.write_table(pa.table({"image": images, "label": labels}), file)


def cut_short(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-30])


def truncated_npz(file: Path) -> None:
    write_npz(file)
    cut_short(file)


def array_of_its_own(file: Path) -> None:
    with file.open("wb") as output:
        np.save(output, PIXELS)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (truncated_npz, "cannot be read: File is not a zip file"),
        (lambda file: file.write_bytes(b"no archive"), "cannot be read: "),
        (array_of_its_own, "is no archive: expected one of np.savez"),
        (
            lambda file: write_npz(file, labels=["cat", "dog"]),
            r": labels of type <U3 such as .*cat.*: expected whole numbers from 0 to 9",
        ),
        (
            lambda file: write_npz(file, labels=[None, 1]),
            "cannot be read: Object arrays cannot be loaded",
        ),
        (lambda file: write_npz(file, images=PIXELS / 255), ": images of type float64: expected"),
    ],
)
def test_a_broken_archive_is_named(
    write: Callable[[Path], Any], message: str, tmp_path: Path
) -> None:
    file = tmp_path / "train.npz"
    write(file)
    for read in (lambda: read_npz([file], FACTS, "train"), lambda: read_inputs(file, SPEC)):
        with pytest.raises(DataError, match=rf"train\.npz ?{message}"):
            read()


def test_an_archive_that_only_has_to_be_looked_into_is_named_too(tmp_path: Path) -> None:
    truncated_npz(tmp_path / "all.npz")
    with pytest.raises(DataError, match=r"all\.npz cannot be read"):
        locate(tmp_path, "cifar10")


def truncated_parquet(file: Path) -> None:
    write_parquet(file, [png()], [0])
    cut_short(file)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (truncated_parquet, "cannot be read: "),
        (
            lambda file: write_parquet(file, [png(), None], [0, 1]),
            ": row 1 holds nothing: expected an encoded image, as bytes or a path",
        ),
        (
            lambda file: write_parquet(file, [{"bytes": None, "path": None}], [0]),
            ": row 0 holds nothing",
        ),
        (lambda file: write_parquet(file, [[1, 2]], [0]), ": row 0 holds a value of type list"),
        (
            lambda file: write_parquet(file, [png()[:60]], [0]),
            ": the image in row 0 cannot be decoded",
        ),
        (
            lambda file: write_parquet(file, [png(), png()], [0, None]),
            ": labels of type float64 such as .*: expected whole numbers",
        ),
        (
            lambda file: write_parquet(file, [png(), png()], ["cat", "dog"]),
            ": labels of type object such as 'cat': expected whole numbers",
        ),
    ],
)
def test_a_broken_table_is_named(
    write: Callable[[Path], Any], message: str, tmp_path: Path
) -> None:
    file = tmp_path / "train.parquet"
    write(file)
    for read in (lambda: read_parquet([file], FACTS, "train"), lambda: read_inputs(file, SPEC)):
        with pytest.raises(DataError, match=rf"train\.parquet ?{message}"):
            read()


def test_images_may_be_plain_bytes_in_a_table(tmp_path: Path) -> None:
    write_parquet(tmp_path / "train.parquet", [png(), png()], [3, 4])
    split = read_parquet([tmp_path / "train.parquet"], FACTS, "train")
    assert split.images.shape == (2, 3, 32, 32)
    assert split.labels.tolist() == [3, 4]


@pytest.mark.parametrize(
    "broken", [b"no gzip", gzip.compress(bytes(900), mtime=0)[:-12]], ids=["none", "cut"]
)
def test_a_broken_idx_file_is_named(broken: bytes, tmp_path: Path) -> None:
    images, labels = tmp_path / "images.gz", tmp_path / "labels.gz"
    images.write_bytes(broken)
    labels.write_bytes(broken)
    with pytest.raises(DataError, match=r"images\.gz cannot be read: "):
        read_idx([images, labels], IMAGES["mnist"], "train")


# Images of other channels than the data set's


GREY = np.arange(2 * 32 * 32, dtype=np.uint32).astype(np.uint8).reshape(2, 32, 32)


def write_files(folder: Path, images: NDArray[Any]) -> None:
    for label, pixels in enumerate(images):
        (folder / str(label)).mkdir(parents=True)
        Image.fromarray(pixels).save(folder / str(label) / "one.png")


@pytest.mark.parametrize("shape", [(32, 32), (32, 32, 1), (1, 32, 32)])
def test_grey_images_stand_for_colour_in_files_and_in_archives_and_it_is_said(
    shape: tuple[int, ...], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_files(tmp_path / "files", GREY)
    write_npz(tmp_path / "all.npz", images=GREY.reshape(2, *shape))
    of_files = read_inputs(tmp_path / "files", SPEC)
    of_archive = read_inputs(tmp_path / "all.npz", SPEC)
    for inputs in (of_files, of_archive):
        assert isinstance(inputs.data, ImageData)
        assert (inputs.data.images.numpy() == GREY[:, None].repeat(3, 1)).all()
        assert inputs.data.labels.tolist() == [0, 1]
    said = "2 of 2 images are stored in grey: cifar10 is read in colour, from that one channel"
    assert caplog.messages == [said, said]


def test_colour_stands_for_grey_in_files_and_it_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pixels = np.zeros((1, 28, 28, 3), np.uint8)
    pixels[..., 1] = 200
    write_files(tmp_path, pixels)
    inputs = read_inputs(tmp_path, DatasetSpec("mnist"))
    assert isinstance(inputs.data, ImageData)
    assert inputs.data.images.unique().tolist() == [117]  # 0.587 of 200
    assert "1 of 1 images are stored in colour: mnist is read in grey" in caplog.text


def test_nothing_is_said_of_images_that_have_the_right_channels(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_files(tmp_path, PIXELS)
    read_inputs(tmp_path, SPEC)
    assert caplog.messages == []


def test_pixels_that_would_be_clipped_are_refused(tmp_path: Path) -> None:
    write_files(tmp_path, GREY.astype(np.uint16) * 256)
    with pytest.raises(
        DataError, match=r"one\.png cannot be decoded: pixels of mode I;16: expected"
    ):
        read_inputs(tmp_path, SPEC)
