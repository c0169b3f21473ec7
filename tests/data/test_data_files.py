"""Files of images: every pixel arrives unchanged, and is decoded once for all processes."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

from data import cache, image_files, image_tables, splits
from data.catalog import DataError
from data.clients import client_rows, global_test
from data.examples import ImageSplit
from data.spec import DatasetSpec
from data.splits import load_images
from tests.support.image_files import (
    FACTS,
    as_set,
    forget_loaded,
    image_dataset,
    pixels,
    random_split,
    write_image_folder,
    write_parquet,
)

pytestmark = pytest.mark.usefixtures("cache_folder")


def idx_bytes(array: NDArray[np.uint8]) -> bytes:
    shape = np.array(array.shape, ">i4").tobytes()
    return b"\x00\x00\x08" + bytes([array.ndim]) + shape + array.tobytes()


def write_idx(folder: Path, train: ImageSplit, test: ImageSplit, gzipped: bool = False) -> Path:
    folder.mkdir()
    for prefix, split in (("train", train), ("t10k", test)):
        for kind, array in (("images-idx3", split.images[:, 0]), ("labels-idx1", split.labels)):
            content = idx_bytes(array.astype(np.uint8))
            name = f"{prefix}-{kind}-ubyte{'.gz' if gzipped else ''}"
            (folder / name).write_bytes(gzip.compress(content) if gzipped else content)
    return folder


def same(one: ImageSplit, other: ImageSplit) -> bool:
    return np.array_equal(one.images, other.images) and np.array_equal(one.labels, other.labels)


# Files


def test_parquet_keeps_every_pixel(tmp_path: Path) -> None:
    train, test = random_split(30), random_split(20, seed=1)
    path = write_parquet(tmp_path / "files", train, test)
    (path / "cifar100-train.parquet").write_bytes(b"another data set in the same folder")
    (path / "sst2-train.parquet").write_bytes(b"and another")
    loaded = load_images(DatasetSpec("cifar10", path=str(path)))
    assert same(loaded.train, train)
    assert same(loaded.test, test)


def test_parquet_shards_are_read_in_order(tmp_path: Path) -> None:
    train, test = random_split(30), random_split(10, seed=1)
    (tmp_path / "plain_text").mkdir()
    for shard, rows in enumerate((slice(0, 17), slice(17, 30))):
        part = ImageSplit(train.images[rows], train.labels[rows])
        file = tmp_path / "plain_text" / f"train-{shard:05}-of-00002.parquet"
        image_dataset(part, label="fine_label").to_parquet(file)
    image_dataset(test).to_parquet(tmp_path / "plain_text" / "test-00000-of-00001.parquet")
    loaded = load_images(DatasetSpec("cifar10", path=str(tmp_path)))
    assert same(loaded.train, train)
    assert same(loaded.test, test)


@pytest.mark.parametrize("gzipped", [True, False])
def test_idx_files_keep_every_pixel(tmp_path: Path, gzipped: bool) -> None:
    train, test = random_split(30, "fashion-mnist"), random_split(20, "fashion-mnist", 1)
    path = write_idx(tmp_path / "files", train, test, gzipped)
    loaded = load_images(DatasetSpec("fashion-mnist", path=str(path)))
    assert same(loaded.train, train)
    assert same(loaded.test, test)


@pytest.mark.parametrize("channels_last", [True, False])
def test_npz_keeps_every_pixel(tmp_path: Path, channels_last: bool) -> None:
    train, test = random_split(30), random_split(20, seed=1)
    axes = (0, 2, 3, 1) if channels_last else (0, 1, 2, 3)
    np.savez(
        tmp_path / "all.npz",
        x_train=train.images.transpose(axes),
        y_train=train.labels[:, None],  # as Keras has them
        x_test=test.images.transpose(axes),
        y_test=test.labels[:, None],
    )
    loaded = load_images(DatasetSpec("cifar10", path=str(tmp_path / "all.npz")))
    assert same(loaded.train, train)
    assert same(loaded.test, test)


def test_a_set_without_test_files_gives_up_a_fifth_of_itself(tmp_path: Path) -> None:
    everything = random_split(100, "mnist")
    np.savez(tmp_path / "mnist.npz", x=everything.images[:, 0], y=everything.labels)
    train, test = load_images(DatasetSpec("mnist", path=str(tmp_path)))
    assert (len(train.labels), len(test.labels)) == (80, 20)
    assert as_set(train) | as_set(test) == as_set(everything)


@pytest.mark.parametrize("names", [FACTS.classes, tuple("0123456789")])
def test_image_folders_keep_every_pixel(tmp_path: Path, names: tuple[str, ...]) -> None:
    train, test = random_split(30), random_split(20, seed=1)
    write_image_folder(tmp_path / "train", train, names)
    write_image_folder(tmp_path / "test", test, names)
    loaded = load_images(DatasetSpec("cifar10", path=str(tmp_path)))
    assert as_set(loaded.train) == as_set(train)
    assert as_set(loaded.test) == as_set(test)


def test_the_published_data_set_is_read_from_hugging_face(monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = random_split(30), random_split(20, seed=1)

    def load_dataset(*hub: str, split: list[str]) -> list[datasets.Dataset]:
        assert (hub, split) == (("uoft-cs/cifar10",), ["train", "test"])
        return [image_dataset(train), image_dataset(test)]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    loaded = load_images(DatasetSpec("cifar10"))
    assert same(loaded.train, train)
    assert same(loaded.test, test)


def test_without_a_network_the_error_says_to_give_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*hub: str, split: list[str]) -> None:
        raise ConnectionError("Couldn't reach the Hub")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(DataError, match="could not be fetched as uoft-cs/cifar10"):
        load_images(DatasetSpec("cifar10"))


def test_wrong_files_are_refused_with_what_was_expected(tmp_path: Path) -> None:
    def refused(name: str = "cifar10", path: Path = tmp_path) -> str:
        with pytest.raises(DataError) as caught:
            load_images(DatasetSpec(name, path=str(path)))
        return str(caught.value)

    assert "does not exist" in refused(path=tmp_path / "nowhere")
    assert "no images in" in refused()

    right = random_split(20)
    for images, labels, complaint in (
        (right.images[:, :, :16], right.labels, "images of shape (3, 16, 32): cifar10 has"),
        (right.images / 255, right.labels, "images of type float64: expected uint8"),
        (right.images, right.labels + 1, "from 1 to 10: expected whole numbers from 0 to 9"),
        (right.images, right.labels[:9], "20 images and 9 labels"),
    ):
        np.savez(tmp_path / "all.npz", x=images, y=labels)
        assert complaint in refused()
        forget_loaded()
    np.savez(tmp_path / "all.npz", pixels=right.images)
    assert "holds pixels: expected x and y" in refused()


def test_wrong_images_are_named(tmp_path: Path) -> None:
    spec = DatasetSpec("cifar10", path=str(tmp_path))
    write_image_folder(tmp_path, random_split(3, "mnist"), FACTS.classes)
    with pytest.raises(DataError, match=r"000\.png has 28x28 pixels: cifar10 has 32x32"):
        load_images(spec)
    (tmp_path / "airplane" / "000.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"000\.png cannot be decoded"):
        load_images(spec)
    (tmp_path / "airplane").rename(tmp_path / "zeppelin")
    with pytest.raises(DataError, match="'zeppelin' is no class of cifar10"):
        load_images(spec)


def test_a_table_without_images_and_a_cut_idx_file_are_refused(tmp_path: Path) -> None:
    text = tmp_path / "train.parquet"
    datasets.Dataset.from_dict({"sentence": ["a"], "label": [0]}).to_parquet(text)
    with pytest.raises(DataError, match="no column img or image; the columns are: sentence, label"):
        image_tables.read_parquet([text], FACTS, "train")
    split = random_split(5, "mnist")
    path = write_idx(tmp_path / "idx", split, split)
    images = path / "train-images-idx3-ubyte"
    images.write_bytes(images.read_bytes()[:-1])
    with pytest.raises(DataError, match="cut short"):
        load_images(DatasetSpec("mnist", path=str(path)))


def test_an_image_of_any_size_is_scaled_and_its_centre_cut_out(tmp_path: Path) -> None:
    """300 x 600 pixels, the left half black: 256 x 512, and of that the middle 224 x 224."""
    pixels = np.zeros((300, 600, 3), np.uint8)
    pixels[:, 300:] = 255
    for split in ("train", "val"):
        (tmp_path / split / "7").mkdir(parents=True)
        Image.fromarray(pixels).save(tmp_path / split / "7" / "image.png")
    train = load_images(DatasetSpec("imagenet", path=str(tmp_path), clients=1)).train
    assert train.images.shape == (1, 3, 224, 224)
    assert train.labels.tolist() == [7]
    assert train.images[..., :110].max() == 0
    assert train.images[..., 114:].min() == 255


# The cache


def test_a_second_process_maps_the_arrays_instead_of_decoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = DatasetSpec("cifar10", path=str(write_parquet(tmp_path / "f", random_split(60))))
    first = load_images(spec)
    rows = client_rows(spec)
    forget_loaded()
    for module, name in ((image_files, "decode_images"), (splits, "_read_splits")):
        monkeypatch.setattr(module, name, lambda *_: pytest.fail("decoded again"))
    monkeypatch.setattr("data.clients.partition", lambda *_: pytest.fail("dealt out again"))
    again = load_images(spec)
    assert isinstance(again.train.images.base, np.memmap)
    assert same(first.train, again.train)
    assert all(map(np.array_equal, rows, client_rows(spec)))


def test_changed_files_are_decoded_anew(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "f", random_split(30), random_split(10))
    spec = DatasetSpec("cifar10", path=str(path))
    assert same(load_images(spec).train, random_split(30))
    write_parquet(path, random_split(40, seed=5))
    forget_loaded()
    assert same(load_images(spec).train, random_split(40, seed=5))


def test_what_a_client_does_to_its_arrays_stays_with_it() -> None:
    test = global_test(DatasetSpec())
    before = pixels(test).clone()
    pixels(test).zero_()
    forget_loaded()
    assert torch.equal(pixels(global_test(DatasetSpec())), before)


def test_a_killed_write_leaves_no_broken_cache(cache_folder: Path) -> None:
    killed_while_writing = textwrap.dedent("""
        import os, signal
        import numpy as np
        from data import cache

        def save(file, array):
            file.write_bytes(b"half an array")
            os.kill(os.getpid(), signal.SIGKILL)

        cache.np.save = save
        cache.cached_arrays("kind", "key", lambda: {"numbers": np.arange(9)})
    """)
    environment = os.environ | {"PYTHONPATH": str(Path(cache.__file__).parents[1])}
    died = subprocess.run([sys.executable, "-c", killed_while_writing], env=environment)
    assert died.returncode == -signal.SIGKILL
    assert list(cache_folder.glob("kind-*.unfinished"))
    arrays = cache.cached_arrays("kind", "key", lambda: {"numbers": np.arange(9)})
    assert arrays["numbers"].tolist() == list(range(9))
    assert not list(cache_folder.glob("*.unfinished"))


def test_a_cache_that_cannot_be_written_names_the_setting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NESTFL_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(DataError, match="set NESTFL_CACHE to a writable folder"):
        load_images(DatasetSpec())
