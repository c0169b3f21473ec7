"""A data set's training and test images: decoded once a machine, then memory-mapped."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.cache import Arrays, cache_dir, cached_arrays
from data.catalog import IMAGES, DataError, ImageFacts, PartitionError
from data.examples import ImageSplit, Splits
from data.homes import with_home
from data.image_files import checked_split
from data.image_tables import read_table
from data.locate import SplitFiles, locate
from data.own_source import device_arrays, own_images
from data.spec import DatasetSpec

HELD_OUT_SHARE = 0.2
"""The share of a data set that becomes its test set where it has none of its own."""
HELD_OUT_SEED = 0


def load(spec: DatasetSpec) -> Splits[ImageSplit]:
    """Return the data set's two splits, as read-only arrays shared by all processes."""
    if spec.is_own:
        return own_images(spec)
    return _load(spec.name, spec.path, cache_dir())


@lru_cache(maxsize=4)
def _load(name: str, path: str | None, _cache: Path) -> Splits[ImageSplit]:
    facts = IMAGES[name]
    if path is not None:
        files = locate(with_home(path).resolve(), name)
        key: object = ("splits", files.fingerprint())
        arrays = cached_arrays(name, key, lambda: _named(_read_splits(files, facts)))
    elif facts.hub:
        arrays = cached_arrays(name, facts.hub, lambda: _named(_read_hub(facts)))
    else:
        arrays = cached_arrays(name, "bundled", lambda: _named(_read_digits(facts)))
    return Splits(
        ImageSplit(arrays["train-images"], arrays["train-labels"]),
        ImageSplit(arrays["test-images"], arrays["test-labels"]),
    )


def _named(splits: Splits[ImageSplit]) -> Arrays:
    return {
        "train-images": splits.train.images,
        "train-labels": splits.train.labels,
        "test-images": splits.test.images,
        "test-labels": splits.test.labels,
    }


def load_own(spec: DatasetSpec, path: str) -> ImageSplit:
    """Return all training examples in a device's own files; no global test set is held out here."""
    if spec.is_own:
        arrays = device_arrays(spec, path)
        return ImageSplit(arrays["inputs"], arrays["labels"])
    return _load_own(spec.name, path, cache_dir())


@lru_cache(maxsize=4)
def _load_own(name: str, path: str, _cache: Path) -> ImageSplit:
    facts = IMAGES[name]
    files = locate(with_home(path).resolve(), name)

    def read() -> Arrays:
        split = files.read(files.train, facts, "train")
        return {"images": split.images, "labels": split.labels}

    arrays = cached_arrays(name, ("own", files.fingerprint()), read)
    return ImageSplit(arrays["images"], arrays["labels"])


def _read_splits(files: SplitFiles, facts: ImageFacts) -> Splits[ImageSplit]:
    train = files.read(files.train, facts, "train")
    if files.test:
        return Splits(train, files.read(files.test, facts, "test"))
    return _hold_out_test(train)


def _read_digits(facts: ImageFacts) -> Splits[ImageSplit]:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)  # 0 to 16 in each of 8x8 pixels
    scaled: NDArray[np.uint8] = np.round(images * (255 / 16)).astype(np.uint8)
    return _hold_out_test(checked_split(scaled.reshape(-1, *facts.image_shape), labels, facts))


def _hold_out_test(everything: ImageSplit) -> Splits[ImageSplit]:
    train, test = held_out(everything.labels)
    images, labels = everything
    return Splits(ImageSplit(images[train], labels[train]), ImageSplit(images[test], labels[test]))


def held_out(labels: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return rows to train and to test on: the same fifth of every class, whatever the seed."""
    from sklearn.model_selection import train_test_split

    rows = np.arange(len(labels))
    try:
        train, test = train_test_split(
            rows, test_size=HELD_OUT_SHARE, random_state=HELD_OUT_SEED, stratify=labels
        )
    except ValueError as error:
        raise PartitionError(
            f"no test set can be held out of {len(labels)} examples: {error}"
        ) from error
    return train, test


def _read_hub(facts: ImageFacts) -> Splits[ImageSplit]:
    from datasets import load_dataset

    try:
        train, test = load_dataset(*facts.hub, split=["train", facts.hub_test])
    except Exception as error:  # whatever went wrong, the way out is the same
        raise DataError(
            f"{facts.name} could not be fetched as {facts.hub[0]} from Hugging Face "
            f"({type(error).__name__}: {error}). Without a network, set the data set's path to a "
            "local copy: a folder of *train*.parquet and *test*.parquet, IDX files, an .npz, or "
            "one folder of images a class"
        ) from error
    train, test = (
        read_table(part.data.table, facts, lambda _, text: Path(text)) for part in (train, test)
    )
    return Splits(train, test)
