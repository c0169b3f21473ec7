"""Images of one's own: what their files say becomes the facts that a run has of them."""

from __future__ import annotations

import io
import os
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from data.cache import cache_dir
from data.catalog import DataError, UnknownClassError
from data.clients import client_data, device_data, global_test
from data.examples import ImageData
from data.inputs import read_inputs, read_unlabelled
from data.listing import guessed
from data.look import completed, mean_and_deviation
from data.own_files import image_files
from data.spec import DatasetSpec
from data.splits import splits_of
from data.unlabelled import UnlabelledSpec, unlabelled
from tests.support.own_files import photos, write_photo, write_photos

TWO_EACH = {"cat": 2, "dog": 2}


def images_of(split: object) -> NDArray[np.uint8]:
    found: NDArray[np.uint8] = split.images  # type: ignore[attr-defined]
    return found


def test_classes_size_channels_mean_and_deviation_are_of_the_files(tmp_path: Path) -> None:
    """Half of the pixels are 0 and half are 255 in red; green is 51 everywhere, blue 0."""
    for name, red in (("dog", 255), ("cat", 0)):
        for row in range(4):
            write_photo(tmp_path / name / f"{row}.png", (red, 51, 0))
    spec = photos(tmp_path, test_share=0.25)
    assert (spec.classes, spec.image_size, spec.channels) == (("cat", "dog"), 8, 3)
    assert spec.mean == (0.5, 0.2, 0.0)
    assert spec.std == (0.5, 1.0, 1.0)  # of a channel of one value
    assert spec.facts.name == "folder"
    assert spec.input_shape == {"in_channels": 3, "image_size": 8}


def test_the_deviation_is_that_of_all_pixels() -> None:
    images = np.array([0, 255, 0, 0], np.uint8).reshape(2, 1, 1, 2)
    mean, std = mean_and_deviation(images)
    assert (mean.tolist(), std.tolist()) == ([0.25], [0.433013])


def test_numbers_are_in_their_order_and_other_names_in_that_of_the_alphabet(tmp_path: Path) -> None:
    write_photos(tmp_path / "numbers", {"10": 2, "9": 2, "1": 2})
    assert photos(tmp_path / "numbers").classes == ("1", "9", "10")
    write_photos(tmp_path / "names", {"b10": 2, "b9": 2})
    assert photos(tmp_path / "names").classes == ("b10", "b9")


def test_a_share_of_each_class_is_held_out_and_the_seed_of_the_run_does_not_matter(
    tmp_path: Path,
) -> None:
    """Of 10 and of 4 a fifth is 2 and 1; of 2 it would be none, and is one."""
    spec = photos(write_photos(tmp_path, {"cat": 10, "dog": 4, "yak": 2}))
    train, test = splits_of(spec)
    assert np.bincount(train.labels).tolist() == [8, 3, 1]
    assert np.bincount(test.labels).tolist() == [2, 1, 1]
    together = {image.tobytes() for split in (train, test) for image in images_of(split)}
    assert len(together) == 16
    assert images_of(splits_of(replace(spec, seed=5)).test).tolist() == images_of(test).tolist()
    others = images_of(splits_of(replace(spec, test_seed=1)).test)
    assert others.tolist() != images_of(test).tolist()
    assert len(global_test(replace(spec, test_share=0.5)).labels) == 8


def test_test_folders_are_the_test_and_may_lack_classes(tmp_path: Path) -> None:
    write_photos(tmp_path / "train", {"cat": 3, "dog": 1})
    write_photos(tmp_path / "test", {"cat": 2})
    spec = photos(tmp_path)
    train, test = splits_of(spec)
    assert (train.labels.tolist(), test.labels.tolist()) == ([0, 0, 0, 1], [0, 0])


def test_images_of_any_size_are_scaled_and_cut_where_a_size_is_given(tmp_path: Path) -> None:
    """A third of a wide image is left, in the middle: there it is white."""
    for name in TWO_EACH:
        for row in range(2):
            pixels = np.zeros((16, 48, 3), np.uint8)
            pixels[:, 16:32] = 255
            (tmp_path / name).mkdir(exist_ok=True)
            Image.fromarray(pixels).save(tmp_path / name / f"{row}.png")
    spec = photos(tmp_path, image_size=4, channels=1)
    train = splits_of(spec).train
    assert images_of(train).shape == (2, 1, 4, 4)
    assert images_of(train)[:, :, 1:3, 1:3].min() > 240


def test_photos_are_turned_as_their_camera_was_held(tmp_path: Path) -> None:
    """The right half is white; turned to the left, as orientation 8 asks for, the upper one is."""
    exif = Image.Exif()
    exif[0x0112] = 8
    for name in TWO_EACH:
        for row in range(2):
            pixels = np.zeros((8, 8), np.uint8)
            pixels[:, 4:] = 255
            (tmp_path / name).mkdir(exist_ok=True)
            Image.fromarray(pixels).save(tmp_path / name / f"{row}.jpg", exif=exif, quality=95)
    (image, *_) = images_of(splits_of(photos(tmp_path)).train)
    assert image[0, :4].min() > 200
    assert image[0, 4:].max() < 50


def test_a_warning_of_grey_images_speaks_of_yours_and_not_of_the_setting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = write_photos(tmp_path, {"cat": 2, "dog": 2})
    write_photo(folder / "cat" / "grey.png", (100,))
    completed(photos(folder))
    said = "images are stored in grey: your images are read in colour, from that one channel"
    assert said in caplog.text
    assert "folder is" not in caplog.text


def test_images_are_grey_if_all_are_and_the_setting_wins(tmp_path: Path) -> None:
    for name in TWO_EACH:
        for row in range(2):
            write_photo(tmp_path / name / f"{row}.png", (90,))
    assert photos(tmp_path).channels == 1
    assert photos(tmp_path, channels=3).mean == pytest.approx((90 / 255,) * 3, abs=1e-6)
    write_photo(tmp_path / "cat" / "colour.png")
    assert photos(tmp_path).channels == 3


def test_augmentation_is_as_the_settings_say() -> None:
    facts = {"classes": ("a", "b"), "image_size": 32, "channels": 1, "mean": (0.5,), "std": (0.5,)}
    usual = DatasetSpec("folder", **facts).facts  # type: ignore[arg-type]
    assert (usual.crop_padding, usual.flip) == (4, True)  # type: ignore[union-attr]
    none = DatasetSpec("folder", crop_padding=0, flip=False, **facts).facts  # type: ignore[arg-type]
    assert (none.crop_padding, none.flip) == (0, False)  # type: ignore[union-attr]


# --- archives and Hugging Face's folders ---------------------------------------------------------


def test_an_archive_has_its_classes_from_its_labels(tmp_path: Path) -> None:
    images = np.arange(6 * 5 * 5 * 3, dtype=np.int64).astype(np.uint8).reshape(6, 5, 5, 3)
    np.savez(
        tmp_path / "a.npz",
        x_train=images[:4],
        y_train=[7, 3, 7, 3],
        x_test=images[4:],
        y_test=[3, 7],
    )
    spec = photos(tmp_path / "a.npz")
    assert (spec.classes, spec.image_size, spec.channels) == (("3", "7"), 5, 3)
    train, test = splits_of(spec)
    assert (train.labels.tolist(), test.labels.tolist()) == ([1, 0, 1, 0], [0, 1])
    assert images_of(train).tolist() == images[:4].transpose(0, 3, 1, 2).tolist()
    smaller = photos(tmp_path / "a.npz", image_size=3)
    assert images_of(splits_of(smaller).test).shape == (2, 3, 3, 3)


def hub_table(names: list[str], labels: list[int]) -> datasets.Dataset:
    def png(value: int) -> bytes:
        buffer = io.BytesIO()
        Image.new("L", (4, 4), value).save(buffer, "png")
        return buffer.getvalue()

    features = datasets.Features(
        {"picture": datasets.Image(), "label": datasets.ClassLabel(names=names)}
    )
    rows = [{"bytes": png(10 * row), "path": None} for row in range(len(labels))]
    return datasets.Dataset.from_dict({"picture": rows, "label": labels}, features=features)


@pytest.mark.parametrize("saved", ["parquet", "disk"])
def test_a_hugging_face_folder_tells_the_names_of_its_classes(tmp_path: Path, saved: str) -> None:
    """The order is that of the file, and a class may have no example."""
    train, test = hub_table(["yak", "cat", "dog"], [0, 1, 1]), hub_table(["yak", "cat", "dog"], [1])
    if saved == "disk":
        datasets.DatasetDict({"train": train, "test": test}).save_to_disk(tmp_path / "hub")
    else:
        (tmp_path / "hub" / "data").mkdir(parents=True)
        train.to_parquet(tmp_path / "hub" / "data" / "train-00000-of-00001.parquet")
        test.to_parquet(tmp_path / "hub" / "data" / "test-00000-of-00001.parquet")
    assert guessed(tmp_path / "hub") == "folder"
    spec = photos(tmp_path / "hub")
    assert (spec.classes, spec.image_size, spec.channels) == (("yak", "cat", "dog"), 4, 1)
    assert splits_of(spec).train.labels.tolist() == [0, 1, 1]
    assert images_of(splits_of(spec).train)[:, 0, 0, 0].tolist() == [0, 10, 20]
    assert splits_of(spec).test.labels.tolist() == [1]


# --- on devices, and to answer for ---------------------------------------------------------------


def test_a_device_s_images_are_read_with_the_facts_of_the_run(tmp_path: Path) -> None:
    """They are larger, and of the second class alone: that has the run's number, not its own."""
    spec = photos(write_photos(tmp_path / "run", {"cat": 4, "dog": 4}))
    for row in range(10):
        write_photo(tmp_path / "own" / "dog" / f"{row}.png", (9, 9, 9), (32, 16))
    own = device_data(tmp_path / "own", replace(spec, path=None))
    assert (len(own.train), len(own.validation), len(own.test)) == (8, 1, 1)
    assert isinstance(own.train, ImageData)
    assert own.train.images.shape == (8, 3, 8, 8)
    assert own.train.labels.tolist() == [1] * 8


def test_what_is_held_out_is_no_matter_to_a_device_nor_to_the_first_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a comparison of seeds of the test would leave a decoded copy for each on a device."""
    monkeypatch.setenv("NESTFL_CACHE", str(tmp_path / "cache"))
    write_photos(tmp_path / "run", {"cat": 8, "dog": 8})
    write_photos(tmp_path / "mine", {"cat": 4, "dog": 4})
    for seed in range(3):
        spec = photos(tmp_path / "run", test_seed=seed, test_share=0.25 + seed / 10)
        assert len(device_data(tmp_path / "mine", spec).train) > 0
    kept = Counter(entry.name.split("-")[0] for entry in cache_dir().iterdir() if entry.is_dir())
    assert kept == {"look": 1, "folder": 4, "mean": 3}  # three splits of the run, one device


def test_a_class_that_the_run_does_not_know_is_refused(tmp_path: Path) -> None:
    spec = photos(write_photos(tmp_path / "run", {"cat": 4, "dog": 4}))
    write_photos(tmp_path / "own", {"cat": 3, "yak": 2})
    with pytest.raises(UnknownClassError, match=r"yak/00\.png is of the class 'yak', which") as why:
        device_data(tmp_path / "own", spec)
    assert why.value.numbers == "2 of 5 examples are of 1 classes that are none of the run's 2"


def test_given_classes_may_be_more_than_the_server_has(tmp_path: Path) -> None:
    write_photos(tmp_path, {"cat": 4, "dog": 4})
    spec = photos(tmp_path, classes=("dog", "yak", "cat"))
    assert spec.num_classes == 3
    assert set(splits_of(spec).train.labels.tolist()) == {0, 2}
    with pytest.raises(
        DataError, match=r"cat/00\.png is of the class 'cat', which the run does no"
    ):
        photos(tmp_path, classes=("dog", "yak"))


def test_inputs_to_answer_for_may_have_any_size_and_their_folders_name_classes(
    tmp_path: Path,
) -> None:
    spec = photos(write_photos(tmp_path / "run", {"1": 3, "2": 3}))
    write_photo(tmp_path / "new" / "2" / "large.png", (5, 5, 5), (30, 20))
    write_photo(tmp_path / "new" / "1" / "small.png", (5, 5, 5), (3, 4))
    inputs = read_inputs(tmp_path / "new", spec)
    assert inputs.data.labels.tolist() == [0, 1]  # by name: `1` is the first class here
    assert inputs.names == ("1/small.png", "2/large.png")
    one = read_inputs(tmp_path / "new" / "2" / "large.png", spec)
    assert not one.labelled
    np.savez(tmp_path / "new.npz", x=np.zeros((2, 9, 9), np.uint8), y=[2, 1])
    archive = read_inputs(tmp_path / "new.npz", spec)
    assert archive.data.labels.tolist() == [1, 0]
    assert archive.data.images.shape == (2, 3, 8, 8)  # type: ignore[attr-defined]
    assert len(read_unlabelled(tmp_path / "new.npz", spec)) == 2


def test_a_server_distils_with_what_it_keeps_or_with_another_data_set(tmp_path: Path) -> None:
    spec = replace(photos(write_photos(tmp_path, {"cat": 10, "dog": 10})), server=0.5, clients=2)
    assert len(unlabelled(UnlabelledSpec("own"), spec)) == 8
    digits = unlabelled(UnlabelledSpec("digits", max_examples=5), spec)
    assert isinstance(digits, ImageData)
    assert digits.images.shape == (5, 3, 8, 8)


def test_clients_are_dealt_all_of_the_training_part(tmp_path: Path) -> None:
    spec = replace(photos(write_photos(tmp_path, {"cat": 10, "dog": 10})), clients=3)
    parts = [client_data(spec, client) for client in range(3)]
    rows = [
        x
        for part in parts
        for data in (part.train, part.validation, part.test)
        for x in data.labels
    ]
    assert torch.stack(rows).bincount().tolist() == [8, 8]


# --- what is wrong -------------------------------------------------------------------------------


def test_mixed_sizes_are_told_with_two_images_and_what_to_set(tmp_path: Path) -> None:
    write_photos(tmp_path, TWO_EACH)
    write_photo(tmp_path / "dog" / "wide.png", size=(20, 10))
    with pytest.raises(DataError) as why:
        photos(tmp_path)
    assert str(why.value) == (
        f"images of 2 sizes, {tmp_path}/cat/00.png has 8x8 pixels and {tmp_path}/dog/wide.png has "
        "20x10 pixels: expected squares of one size, or dataset.image_size, which all are scaled "
        "and cut to"
    )


def test_images_that_are_no_squares_need_a_size_too(tmp_path: Path) -> None:
    for name in TWO_EACH:
        write_photo(tmp_path / name / "wide.png", size=(20, 10))
    with pytest.raises(DataError, match=r"wide\.png has 20x10 pixels: expected squares of one"):
        photos(tmp_path)


@pytest.mark.parametrize("cut", [5, 45])
def test_a_corrupt_image_is_named_and_nothing_is_kept(
    tmp_path: Path, cut: int, cache_folder: Path
) -> None:
    """The first bytes are broken, or the last ones are missing."""
    write_photos(tmp_path / "photos", TWO_EACH)
    bad = tmp_path / "photos" / "dog" / "01.png"
    bad.write_bytes(bad.read_bytes()[:cut])
    with pytest.raises(DataError, match=r"dog/01\.png cannot be decoded: "):
        photos(tmp_path / "photos")
    assert not [entry for entry in cache_folder.glob("folder-*") if entry.is_dir()]
    write_photo(bad)
    assert photos(tmp_path / "photos").classes == ("cat", "dog")


def test_several_corrupt_images_are_counted(tmp_path: Path) -> None:
    write_photos(tmp_path, {"cat": 4, "dog": 4})
    for row in range(3):
        (tmp_path / "dog" / f"0{row}.png").write_bytes(b"no image")
    with pytest.raises(
        DataError, match=r"dog/00\.png cannot .*; and 2 more, which `nestfl data` l"
    ):
        photos(tmp_path)


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.zeros((6, 8, 8, 5), np.uint8), [0, 1] * 3, r"images of shape \(8, 8, 5\): expected h"),
        (np.zeros((6, 0, 0), np.uint8), [0, 1] * 3, r"images of shape \(0, 0\): expected height"),
        (np.zeros((6, 8, 8)), [0, 1] * 3, "images of type float64: expected uint8"),
        (np.zeros((6, 8, 8), np.uint8), [-1] * 6, r"6 examples of one class \(-1\): .*told by y"),
        (np.zeros((6, 8, 8), np.uint8), [5] + [1] * 5, "class '5' has one example: expected"),
    ],
)
def test_an_archive_with_wrong_arrays_is_named(
    x: NDArray[Any], y: list[int], message: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "a.npz", x=x, y=y)
    with pytest.raises(DataError, match=rf"a\.npz: {message}"):
        photos(tmp_path / "a.npz")


def test_an_archive_to_answer_for_with_wrong_arrays_is_named(tmp_path: Path) -> None:
    spec = photos(write_photos(tmp_path / "photos", TWO_EACH))
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 8, 8, 5), np.uint8))
    with pytest.raises(DataError, match=r"a\.npz: images of shape \(8, 8, 5\): expected height"):
        read_inputs(tmp_path / "a.npz", spec)


def test_other_wrong_folders_are_told_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"no images and no tables in .*empty: expected one f"):
        photos(tmp_path / "empty")
    with pytest.raises(DataError, match="nowhere does not exist"):
        photos(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"path is null: expected dataset\.path"):
        completed(DatasetSpec("folder"))
    write_photos(tmp_path / "one", {"cat": 3})
    with pytest.raises(DataError, match=r"3 examples of one class \(cat\): expected at least 2"):
        photos(tmp_path / "one")
    write_photos(tmp_path / "rare", {"cat": 3, "dog": 1})
    with pytest.raises(DataError, match="class 'dog' has one example: expected at least 2, to tr"):
        photos(tmp_path / "rare")
    write_photo(tmp_path / "loose" / "a.png")
    write_photos(tmp_path / "loose", TWO_EACH)
    with pytest.raises(DataError, match=r"a\.png lies in no folder: expected the folder of its cl"):
        photos(tmp_path / "loose")
    write_photos(tmp_path / "deep" / "x", TWO_EACH)
    write_photos(tmp_path / "deep", TWO_EACH)
    with pytest.raises(
        DataError, match=r"x/cat/00\.png lies 2 folders deep, others 1: expected CL"
    ):
        photos(tmp_path / "deep")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"channels": 2}, r"channels is 2: expected 1 \(grey\) or 3 \(RGB\)"),
        ({"image_size": 0}, "image_size is 0: expected 1 to 4096"),
        ({"test_share": 1.0}, "test_share is 1.0: expected above 0 and below 1"),
        ({"classes": ("a", "a")}, "classes are a, a: expected at least 2, each of them once"),
        ({"channels": 3, "mean": (0.5,)}, "mean is .*: expected a number for each of 3 channels"),
        ({"std": (0.0,)}, "std is .*: expected numbers from 0 to 1"),
        ({"partition": "column"}, "partition is column, but column is null"),
        ({"crop_padding": -1}, "crop_padding is -1: expected 0 to 4096"),
        ({"test_seed": -1}, "test_seed is -1: expected 0 or more"),
        ({"text": "body"}, "text is body, which is for table, not for folder: expected null"),
    ],
)
def test_wrong_settings_are_told(settings: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        DatasetSpec("folder", **settings)  # type: ignore[arg-type]


def test_what_is_for_data_of_one_s_own_is_refused_for_others() -> None:
    with pytest.raises(DataError, match="image_size is 64, which is for data of one's own"):
        DatasetSpec("cifar10", image_size=64)
    with pytest.raises(DataError, match="partition is column, which is for data of one's own"):
        DatasetSpec("cifar10", partition="column")
    with pytest.raises(DataError, match="partition is folders, but table has none"):
        DatasetSpec("table", partition="folders")


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n"
"""Pillow would hand this to Ghostscript, whatever the file is called."""


@pytest.mark.parametrize("content", [b"", b"a text", b"\x89PNG\r\n\x1a\n", EPS])
def test_what_is_no_image_is_told_in_words(tmp_path: Path, content: bytes) -> None:
    write_photos(tmp_path, {"cat": 2, "dog": 2})
    (tmp_path / "cat" / "00.png").write_bytes(content)
    with pytest.raises(
        DataError, match=r"cat/00\.png cannot be decoded: it is no image of a known format"
    ):
        photos(tmp_path)


def test_a_folder_that_may_not_be_listed_is_told() -> None:
    """Root may list all, so it is another user who looks."""
    with tempfile.TemporaryDirectory() as place:
        folder = write_photos(Path(place), {"cat": 2, "dog": 2})
        folder.chmod(0o755)
        (folder / "cat").chmod(0)
        user = os.geteuid()
        try:
            if user == 0:
                os.seteuid(65534)
            with pytest.raises(DataError, match=r"/cat cannot be read: Permission denied$"):
                image_files(folder)
        finally:
            os.seteuid(user)
            (folder / "cat").chmod(0o755)
