"""Small image data sets of random pixels, and the files that such sets come in."""

from __future__ import annotations

import io
from pathlib import Path

import datasets
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from data import splits
from data.catalog import IMAGES
from data.clients import deal_of
from data.examples import Examples, ImageData, ImageSplit

FACTS = IMAGES["cifar10"]


def forget_loaded() -> None:
    """Clear all caches in memory, as in a new process."""
    splits._images.cache_clear()
    splits._device_images.cache_clear()
    deal_of.cache_clear()


def random_split(rows: int, name: str = "cifar10", seed: int = 0) -> ImageSplit:
    rng = np.random.default_rng(seed)
    facts = IMAGES[name]
    images = rng.integers(0, 256, (rows, *facts.image_shape), np.uint8)
    return ImageSplit(images, np.arange(rows) % facts.num_classes)


def encoded(image: NDArray[np.uint8], format: str = "png") -> bytes:
    pixels = image[0] if image.shape[0] == 1 else image.transpose(1, 2, 0)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, format, lossless=True)
    return buffer.getvalue()


def image_dataset(split: ImageSplit, image: str = "img", label: str = "label") -> datasets.Dataset:
    rows = {image: [{"bytes": encoded(x), "path": None} for x in split.images], label: split.labels}
    features = datasets.Features(
        {image: datasets.Image(), label: datasets.ClassLabel(names=list(FACTS.classes))}
    )
    return datasets.Dataset.from_dict(rows, features=features)


def write_parquet(folder: Path, train: ImageSplit, test: ImageSplit | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    image_dataset(train).to_parquet(folder / "cifar10-train.parquet")
    if test is not None:
        image_dataset(test, image="image").to_parquet(folder / "cifar10-test.parquet")
    return folder


def write_image_folder(folder: Path, split: ImageSplit, names: tuple[str, ...]) -> Path:
    for row, (image, label) in enumerate(zip(*split, strict=True)):
        class_folder = folder / names[label]
        class_folder.mkdir(parents=True, exist_ok=True)
        (class_folder / f"{row:03}.png").write_bytes(encoded(image))
    return folder


def pixels(examples: Examples) -> torch.Tensor:
    assert isinstance(examples, ImageData)
    return examples.images


def as_set(split: ImageSplit | Examples) -> set[tuple[bytes, int]]:
    images = split.images if isinstance(split, ImageSplit) else pixels(split)
    contents = [np.asarray(image).tobytes() for image in images]
    return set(zip(contents, np.asarray(split.labels).tolist(), strict=True))
