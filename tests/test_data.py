"""Data: every example is somebody's once, the test set nobody's, and pixels arrive unchanged."""

from __future__ import annotations

import gzip
import io
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

import data
from data import (
    IMAGES,
    DataError,
    DatasetSpec,
    Examples,
    ImageData,
    Split,
    cache,
    formats,
    source,
)
from data.augment import augment, crop, mirror
from data.partition import split_parts
from data.spec import PARTITION_KINDS, PartitionKind

FACTS = IMAGES["cifar10"]
LABELS = np.repeat(np.arange(10), 60)


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "cache"
    monkeypatch.setenv("NESTFL_CACHE", str(folder))
    forget_loaded()
    yield folder
    forget_loaded()


def forget_loaded() -> None:
    """What a new process knows: nothing but the files."""
    source._load.cache_clear()
    source.load_own.cache_clear()
    data.client_rows.cache_clear()


def random_split(rows: int, name: str = "cifar10", seed: int = 0) -> Split:
    rng = np.random.default_rng(seed)
    facts = IMAGES[name]
    images = rng.integers(0, 256, (rows, *facts.image_shape), np.uint8)
    return Split(images, np.arange(rows) % facts.num_classes)


def encoded(image: NDArray[np.uint8], format: str = "png") -> bytes:
    pixels = image[0] if image.shape[0] == 1 else image.transpose(1, 2, 0)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format, lossless=True)
    return buffer.getvalue()


def image_dataset(split: Split, image: str = "img", label: str = "label") -> datasets.Dataset:
    rows = {image: [{"bytes": encoded(x), "path": None} for x in split.images], label: split.labels}
    features = datasets.Features(
        {image: datasets.Image(), label: datasets.ClassLabel(names=list(FACTS.classes))}
    )
    return datasets.Dataset.from_dict(rows, features=features)


def write_parquet(folder: Path, train: Split, test: Split | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    image_dataset(train).to_parquet(folder / "cifar10-train.parquet")
    if test is not None:
        image_dataset(test, image="image").to_parquet(folder / "cifar10-test.parquet")
    return folder


def idx_bytes(array: NDArray[np.uint8]) -> bytes:
    shape = np.array(array.shape, ">i4").tobytes()
    return b"\x00\x00\x08" + bytes([array.ndim]) + shape + array.tobytes()


def write_idx(folder: Path, train: Split, test: Split, gzipped: bool = False) -> Path:
    folder.mkdir()
    for prefix, split in (("train", train), ("t10k", test)):
        for kind, array in (("images-idx3", split.images[:, 0]), ("labels-idx1", split.labels)):
            content = idx_bytes(array.astype(np.uint8))
            name = f"{prefix}-{kind}-ubyte{'.gz' if gzipped else ''}"
            (folder / name).write_bytes(gzip.compress(content) if gzipped else content)
    return folder


def write_image_folder(folder: Path, split: Split, names: tuple[str, ...]) -> Path:
    for row, (image, label) in enumerate(zip(*split, strict=True)):
        class_folder = folder / names[label]
        class_folder.mkdir(parents=True, exist_ok=True)
        (class_folder / f"{row:03}.png").write_bytes(encoded(image))
    return folder


def same(one: Split, other: Split) -> bool:
    return np.array_equal(one.images, other.images) and np.array_equal(one.labels, other.labels)


def pixels(examples: Examples) -> torch.Tensor:
    assert isinstance(examples, ImageData)
    return examples.images


def as_set(split: Split | Examples) -> set[tuple[bytes, int]]:
    images = split.images if isinstance(split, Split) else pixels(split)
    contents = [np.asarray(image).tobytes() for image in images]
    return set(zip(contents, np.asarray(split.labels).tolist(), strict=True))


# Partitions


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(PARTITION_KINDS),
    clients=st.integers(1, 20),
    alpha=st.floats(0.5, 100),
    seed=st.integers(0, 2**32),
)
def test_every_example_belongs_to_at_most_one_client_and_none_has_nothing(
    kind: PartitionKind, clients: int, alpha: float, seed: int
) -> None:
    spec = DatasetSpec(partition=kind, clients=clients, alpha=alpha, seed=seed)
    parts = data.partition(spec, LABELS)
    rows = np.concatenate(parts)
    assert len(parts) == clients
    assert min(map(len, parts)) >= 1
    assert len(np.unique(rows)) == len(rows)
    if kind != "classes" or clients >= 10:
        assert sorted(rows) == list(range(len(LABELS)))


@settings(deadline=None)
@given(
    size=st.integers(1, 300),
    validation=st.floats(0, 0.99),
    test=st.floats(0, 0.99),
    seed=st.integers(0, 2**32),
)
def test_parts_of_a_client_cover_its_rows_without_overlap(
    size: int, validation: float, test: float, seed: int
) -> None:
    if validation + test >= 1:
        validation, test = validation / 2, test / 2
    spec = DatasetSpec(validation=validation, test=test, seed=seed)
    rows = np.arange(1000, 1000 + size)
    parts = split_parts(rows, spec, 3)
    assert sorted(np.concatenate(parts)) == rows.tolist()
    assert len(parts[0]) >= 1
    assert [len(part) for part in parts[1:]] == [int(size * validation), int(size * test)]


@pytest.mark.parametrize("kind", PARTITION_KINDS)
def test_same_seed_same_partition_and_another_seed_another(kind: PartitionKind) -> None:
    spec = DatasetSpec(partition=kind, clients=10)
    first, again = (data.partition(spec, LABELS) for _ in range(2))
    other = data.partition(replace(spec, seed=1), LABELS)
    assert all(map(np.array_equal, first, again))
    assert not all(map(np.array_equal, first, other))


def test_partition_is_the_same_on_every_machine() -> None:
    clients = data.partition(DatasetSpec(partition="dirichlet", clients=3, max_train=12), LABELS)
    assert [rows.tolist() for rows in clients] == [
        [576],
        [229],
        [541, 506, 142, 459, 363, 109, 153, 212, 36, 89],
    ]


def test_small_alpha_gives_skewed_classes_and_large_alpha_even_ones() -> None:
    def largest_class_share(alpha: float) -> float:
        spec = DatasetSpec(partition="dirichlet", clients=6, alpha=alpha)
        counts = [np.bincount(LABELS[rows]) for rows in data.partition(spec, LABELS)]
        return float(np.mean([count.max() / count.sum() for count in counts]))

    assert largest_class_share(0.1) > 0.4
    assert largest_class_share(1000) < 0.15


def test_sizes_are_skewed_but_classes_are_not() -> None:
    spec = DatasetSpec(partition="sizes", clients=5, alpha=0.5, min_examples=20)
    parts = data.partition(spec, LABELS)
    sizes = [len(rows) for rows in parts]
    assert max(sizes) > 3 * min(sizes)
    assert min(sizes) >= 20
    assert len(np.unique(LABELS[max(parts, key=len)])) == 10


@pytest.mark.parametrize("classes", [1, 2, 5, 10])
def test_each_client_has_as_many_classes_as_asked(classes: int) -> None:
    spec = DatasetSpec(partition="classes", clients=20, classes_per_client=classes)
    parts = data.partition(spec, LABELS)
    assert {len(np.unique(LABELS[rows])) for rows in parts} == {classes}


def test_classes_do_not_follow_the_number_of_the_client() -> None:
    spec = DatasetSpec(partition="classes", clients=10, classes_per_client=1)
    classes = [LABELS[rows[0]] for rows in data.partition(spec, LABELS)]
    assert sorted(classes) == list(range(10)) != classes


def test_max_train_limits_what_is_dealt_out() -> None:
    parts = data.partition(DatasetSpec(clients=4, max_train=100), LABELS)
    assert [len(rows) for rows in parts] == [25] * 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clients": 601}, "600 training examples are too few for 601 clients"),
        ({"clients": 10, "min_examples": 61}, "600 training examples are too few"),
        ({"partition": "dirichlet", "clients": 300, "alpha": 0.01}, "alpha 0.01"),
        ({"partition": "classes", "clients": 400, "classes_per_client": 9}, "_client 9"),
        ({"partition": "classes", "clients": 40, "min_examples": 15}, "min_examples 15"),
    ],
)
def test_an_impossible_partition_says_why(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        data.partition(DatasetSpec(**settings), LABELS)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "places"}, "unknown data set 'places'; choose one of: digits, mnist"),
        ({"partition": "random"}, "unknown partition 'random'; choose one of: iid, dirichlet"),
        ({"alpha": 0.0}, "alpha is 0.0: expected a finite number above 0"),
        ({"alpha": float("nan")}, "alpha is nan"),
        ({"classes_per_client": 11}, "classes_per_client is 11: expected 1 to 10"),
        ({"clients": 0}, "clients is 0: expected at least 1"),
        ({"max_train": 0}, "max_train is 0: expected at least 1"),
        ({"seed": -1}, "seed is -1"),
        ({"validation": 0.5, "test": 0.5}, "validation 0.5 and test 0.5 are no shares"),
        ({"test": -0.1}, "test -0.1"),
    ],
)
def test_a_wrong_setting_is_named_with_what_was_expected(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        DatasetSpec(**settings)


# Clients and the global test set


@pytest.mark.parametrize("kind", PARTITION_KINDS)
def test_digits_of_all_clients_and_the_test_set_are_the_whole_data_set(
    kind: PartitionKind,
) -> None:
    spec = DatasetSpec(partition=kind, clients=12, seed=3)
    clients = [data.client_data(spec, client) for client in range(spec.clients)]
    parts = [part for c in clients for part in (c.train, c.validation, c.test)]
    test = data.global_test(spec)
    assert sum(map(len, parts)) + len(test) == 1797
    assert all(len(client.train) > len(client.validation) for client in clients)
    everything = np.concatenate([pixels(part).numpy() for part in (*parts, test)])
    assert len(np.unique(everything.reshape(1797, -1), axis=0)) == 1797
    assert not set().union(*(as_set(part) for part in parts)) & as_set(test)


def test_digits_test_set_is_a_fifth_of_each_class_for_every_seed() -> None:
    test, other = (data.global_test(DatasetSpec(seed=seed)) for seed in (0, 1))
    assert torch.equal(pixels(test), pixels(other))
    shares = torch.bincount(test.labels) / torch.bincount(
        torch.from_numpy(np.concatenate([split.labels for split in data.load(DatasetSpec())]))
    )
    assert torch.allclose(shares, torch.full((10,), 0.2), atol=0.01)
    assert pixels(test).max() == 255


def test_global_test_can_be_limited() -> None:
    limited = data.global_test(DatasetSpec(max_test=50))
    assert len(limited) == 50
    assert as_set(limited) <= as_set(data.global_test(DatasetSpec()))


def test_an_unknown_client_is_refused() -> None:
    with pytest.raises(DataError, match="no client 10: expected 0 to 9"):
        data.client_data(DatasetSpec(clients=10), 10)


def test_a_device_parts_all_its_own_training_files_by_the_same_rule(tmp_path: Path) -> None:
    own = random_split(50)
    path = write_parquet(tmp_path / "own", own)
    spec = DatasetSpec("cifar10", validation=0.2, test=0.1)
    device = data.device_data(path, spec)
    assert [len(part) for part in (device.train, device.validation, device.test)] == [35, 10, 5]
    assert as_set(device.train) | as_set(device.validation) | as_set(device.test) == as_set(own)
    again = data.device_data(path, spec)
    assert torch.equal(pixels(device.train), pixels(again.train))


def test_a_device_that_has_few_classes_labels_them_as_all_others_do(tmp_path: Path) -> None:
    own = random_split(20)
    horses = Split(own.images[own.labels == 7], own.labels[own.labels == 7])
    path = write_image_folder(tmp_path / "own", horses, FACTS.classes)
    assert set(data.device_data(path, DatasetSpec("cifar10")).train.labels.tolist()) == {7}


# Files


def test_parquet_keeps_every_pixel(tmp_path: Path) -> None:
    train, test = random_split(30), random_split(20, seed=1)
    path = write_parquet(tmp_path / "files", train, test)
    (path / "cifar100-train.parquet").write_bytes(b"another data set in the same folder")
    (path / "sst2-train.parquet").write_bytes(b"and another")
    loaded = data.load(DatasetSpec("cifar10", path=str(path)))
    assert same(loaded.train, train)
    assert same(loaded.test, test)


def test_parquet_shards_are_read_in_order(tmp_path: Path) -> None:
    train, test = random_split(30), random_split(10, seed=1)
    (tmp_path / "plain_text").mkdir()
    for shard, rows in enumerate((slice(0, 17), slice(17, 30))):
        part = Split(train.images[rows], train.labels[rows])
        file = tmp_path / "plain_text" / f"train-{shard:05}-of-00002.parquet"
        image_dataset(part, label="fine_label").to_parquet(file)
    image_dataset(test).to_parquet(tmp_path / "plain_text" / "test-00000-of-00001.parquet")
    loaded = data.load(DatasetSpec("cifar10", path=str(tmp_path)))
    assert same(loaded.train, train)
    assert same(loaded.test, test)


@pytest.mark.parametrize("gzipped", [True, False])
def test_idx_files_keep_every_pixel(tmp_path: Path, gzipped: bool) -> None:
    train, test = random_split(30, "fashion-mnist"), random_split(20, "fashion-mnist", 1)
    path = write_idx(tmp_path / "files", train, test, gzipped)
    loaded = data.load(DatasetSpec("fashion-mnist", path=str(path)))
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
    loaded = data.load(DatasetSpec("cifar10", path=str(tmp_path / "all.npz")))
    assert same(loaded.train, train)
    assert same(loaded.test, test)


def test_a_set_without_test_files_gives_up_a_fifth_of_itself(tmp_path: Path) -> None:
    everything = random_split(100, "mnist")
    np.savez(tmp_path / "mnist.npz", x=everything.images[:, 0], y=everything.labels)
    train, test = data.load(DatasetSpec("mnist", path=str(tmp_path)))
    assert (len(train.labels), len(test.labels)) == (80, 20)
    assert as_set(train) | as_set(test) == as_set(everything)


@pytest.mark.parametrize("names", [FACTS.classes, tuple("0123456789")])
def test_image_folders_keep_every_pixel(tmp_path: Path, names: tuple[str, ...]) -> None:
    train, test = random_split(30), random_split(20, seed=1)
    write_image_folder(tmp_path / "train", train, names)
    write_image_folder(tmp_path / "test", test, names)
    loaded = data.load(DatasetSpec("cifar10", path=str(tmp_path)))
    assert as_set(loaded.train) == as_set(train)
    assert as_set(loaded.test) == as_set(test)


def test_the_published_data_set_is_read_from_hugging_face(monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = random_split(30), random_split(20, seed=1)

    def load_dataset(*hub: str, split: list[str]) -> list[datasets.Dataset]:
        assert (hub, split) == (("uoft-cs/cifar10",), ["train", "test"])
        return [image_dataset(train), image_dataset(test)]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    loaded = data.load(DatasetSpec("cifar10"))
    assert same(loaded.train, train)
    assert same(loaded.test, test)


def test_without_a_network_the_error_says_to_give_a_path(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*hub: str, split: list[str]) -> None:
        raise ConnectionError("Couldn't reach the Hub")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(DataError, match="could not be fetched as uoft-cs/cifar10"):
        data.load(DatasetSpec("cifar10"))


def test_wrong_files_are_refused_with_what_was_expected(tmp_path: Path) -> None:
    def refused(name: str = "cifar10", path: Path = tmp_path) -> str:
        with pytest.raises(DataError) as caught:
            data.load(DatasetSpec(name, path=str(path)))
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
        data.load(spec)
    (tmp_path / "airplane" / "000.png").write_bytes(b"no image")
    with pytest.raises(DataError, match=r"000\.png cannot be decoded"):
        data.load(spec)
    (tmp_path / "airplane").rename(tmp_path / "zeppelin")
    with pytest.raises(DataError, match="'zeppelin' is no class of cifar10"):
        data.load(spec)


def test_a_table_without_images_and_a_cut_idx_file_are_refused(tmp_path: Path) -> None:
    text = tmp_path / "train.parquet"
    datasets.Dataset.from_dict({"sentence": ["a"], "label": [0]}).to_parquet(text)
    with pytest.raises(DataError, match="no column img or image; the columns are: sentence, label"):
        formats.read_parquet([text], FACTS, "train")
    split = random_split(5, "mnist")
    path = write_idx(tmp_path / "idx", split, split)
    images = path / "train-images-idx3-ubyte"
    images.write_bytes(images.read_bytes()[:-1])
    with pytest.raises(DataError, match="cut short"):
        data.load(DatasetSpec("mnist", path=str(path)))


# The cache


def test_a_second_process_maps_the_arrays_instead_of_decoding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = DatasetSpec("cifar10", path=str(write_parquet(tmp_path / "f", random_split(60))))
    first = data.load(spec)
    rows = data.client_rows(spec)
    forget_loaded()
    for module, name in ((formats, "decode_images"), (source, "_read_splits")):
        monkeypatch.setattr(module, name, lambda *_: pytest.fail("decoded again"))
    monkeypatch.setattr(data.clients, "partition", lambda *_: pytest.fail("dealt out again"))
    again = data.load(spec)
    assert isinstance(again.train.images.base, np.memmap)
    assert same(first.train, again.train)
    assert all(map(np.array_equal, rows, data.client_rows(spec)))


def test_changed_files_are_decoded_anew(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "f", random_split(30), random_split(10))
    spec = DatasetSpec("cifar10", path=str(path))
    assert same(data.load(spec).train, random_split(30))
    write_parquet(path, random_split(40, seed=5))
    forget_loaded()
    assert same(data.load(spec).train, random_split(40, seed=5))


def test_what_a_client_does_to_its_arrays_stays_with_it() -> None:
    test = data.global_test(DatasetSpec())
    before = pixels(test).clone()
    pixels(test).zero_()
    forget_loaded()
    assert torch.equal(pixels(data.global_test(DatasetSpec())), before)


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
    environment = os.environ | {"PYTHONPATH": str(Path(data.__file__).parents[1])}
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
        data.load(DatasetSpec())


# Batches


def as_data(split: Split, name: str = "cifar10") -> ImageData:
    return ImageData.of(split, IMAGES[name])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_batches_in_order_are_the_normalised_images() -> None:
    split = random_split(25)
    batches = list(as_data(split).batches(10))
    assert [len(labels) for _, labels in batches] == [10, 10, 5]
    images = torch.cat([images for images, _ in batches])
    mean, std = (torch.tensor(x).view(1, 3, 1, 1) for x in (FACTS.mean, FACTS.std))
    torch.testing.assert_close(images, (torch.from_numpy(split.images) / 255 - mean) / std)
    assert images.dtype == torch.float32
    labels = torch.cat([labels for _, labels in batches])
    assert labels.dtype == torch.int64
    assert labels.tolist() == split.labels.tolist()


@settings(max_examples=20, deadline=None)
@given(rows=st.integers(1, 40), batch_size=st.integers(1, 50), seed=st.integers(0, 2**32))
def test_a_shuffled_pass_shows_every_image_once_with_its_label(
    rows: int, batch_size: int, seed: int
) -> None:
    images = np.arange(rows, dtype=np.uint8)[:, None, None, None] * np.ones((1, 8, 8), np.uint8)
    digits = as_data(Split(images, np.arange(rows) % 10), "digits")
    batches = list(digits.batches(batch_size, shuffle=True, generator=seeded(seed)))
    (mean,), (std,) = digits.facts.mean, digits.facts.std
    seen = [
        (round(((image[0, 0, 0] * std + mean) * 255).item()), label.item())
        for batch in batches
        for image, label in zip(*batch, strict=True)
    ]
    assert sorted(seen) == [(row, row % 10) for row in range(rows)]


def test_the_generator_alone_decides_order_and_augmentation() -> None:
    cifar = as_data(random_split(32))

    def one_pass(seed: int) -> torch.Tensor:
        passes = cifar.batches(8, shuffle=True, augment=True, generator=seeded(seed))
        return torch.cat([images for images, _ in passes])

    assert torch.equal(one_pass(0), one_pass(0))
    assert not torch.equal(one_pass(0), one_pass(1))
    assert one_pass(0).shape == (32, 3, 32, 32)


def test_digits_are_shifted_by_at_most_a_pixel_and_never_mirrored() -> None:
    digits = as_data(random_split(10, "digits"), "digits")
    ((plain, _),) = digits.batches(10)
    ((augmented, _),) = digits.batches(10, augment=True, generator=seeded())
    for before, after in zip(plain, augmented, strict=True):
        middle = after[:, 1:-1, 1:-1]
        assert any(torch.equal(middle, before[:, y : y + 6, x : x + 6])
                   for y in range(3) for x in range(3))  # fmt: skip


def test_chance_without_a_generator_and_empty_batches_are_refused() -> None:
    digits = as_data(random_split(10, "digits"), "digits")
    with pytest.raises(ValueError, match="need a generator"):
        digits.batches(4, shuffle=True)
    with pytest.raises(ValueError, match="batch_size is 0"):
        digits.batches(0)


def test_an_empty_part_has_no_batches() -> None:
    assert list(as_data(random_split(0)).batches(4, shuffle=True, generator=seeded())) == []


def test_crop_takes_each_images_own_window() -> None:
    images = torch.arange(2 * 2 * 4 * 4, dtype=torch.uint8).view(2, 2, 4, 4)
    cropped = crop(images, torch.tensor([0, 2]), torch.tensor([1, 2]), 2)
    assert cropped[0].tolist() == [[[1, 2], [5, 6]], [[17, 18], [21, 22]]]
    assert torch.equal(cropped[1], images[1, :, 2:, 2:])


def test_mirror_turns_only_the_chosen_images() -> None:
    images = torch.tensor([[1, 2, 3], [1, 2, 3]]).view(2, 1, 1, 3)
    turned = mirror(images, torch.tensor([False, True]))
    assert turned.flatten(1).tolist() == [[1, 2, 3], [3, 2, 1]]


def test_augmentation_shifts_by_at_most_the_padding_and_flips_half() -> None:
    image = torch.zeros(1, 1, 9, 9, dtype=torch.uint8)
    image[0, 0, 4, 4:6] = torch.tensor([100, 200], dtype=torch.uint8)
    seen = augment(image.expand(2000, 1, 9, 9), 3, True, seeded())[:, 0]
    (_, rows, columns) = (seen == 100).nonzero(as_tuple=True)
    assert len(rows) == 2000
    assert set(rows.tolist()) == set(range(1, 8)) == set(columns.tolist())
    flipped = (seen.argmax(-1).amax(-1) < columns).float().mean()
    assert 0.45 < flipped < 0.55
    assert seen.dtype == torch.uint8


def test_an_image_of_any_size_is_scaled_and_its_centre_cut_out(tmp_path: Path) -> None:
    """300 x 600 pixels, the left half black: 256 x 512, and of that the middle 224 x 224."""
    pixels = np.zeros((300, 600, 3), np.uint8)
    pixels[:, 300:] = 255
    for split in ("train", "val"):
        (tmp_path / split / "7").mkdir(parents=True)
        Image.fromarray(pixels).save(tmp_path / split / "7" / "image.png")
    train = data.load(DatasetSpec("imagenet", path=str(tmp_path), clients=1)).train
    assert train.images.shape == (1, 3, 224, 224)
    assert train.labels.tolist() == [7]
    assert train.images[..., :110].max() == 0
    assert train.images[..., 114:].min() == 255
