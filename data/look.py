"""Look at data of one's own: its classes, and the shape, mean and deviation of its inputs.

`completed(spec)` fills in what a spec leaves open, from the files. What was found is kept on disk
until a file changes, so that looking again takes no time.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from data.cache import Arrays, cached_arrays
from data.catalog import DataError
from data.foreign_files import Broken, raise_if
from data.image_files import GREY_MODES, opened_image
from data.listed import Listed
from data.listing import own_files
from data.own_files import OwnFiles
from data.own_source import all_of, fingerprint_of_own, own_arrays, reading_of, training_list
from data.spec import DatasetSpec
from data.tables import LABEL, ordered

DIGITS = 6
"""That means and deviations are kept with."""
IMAGES_AT_A_TIME = 1024
TOLD_BY = {"images": "a folder each", "archive": "told by y", "tables": "told by dataset.label"}
"""Source of the class of an example, by kind of files."""

Size = tuple[int, int]
"""The width and the height of an image."""


@dataclass(frozen=True)
class Seen:
    """What images are, without a look at their pixels."""

    sizes: Counter[Size]
    first: dict[Size, str]
    """Where the first image of each size is."""
    grey: int
    """How many have one channel."""
    broken: list[Broken] = field(default_factory=list)

    @property
    def channels(self) -> int:
        """Return 1 if all images are grey."""
        return 1 if self.grey == self.sizes.total() else 3


def completed(spec: DatasetSpec) -> DatasetSpec:
    """Return a spec that leaves nothing open which its files can tell."""
    if spec.is_known:
        return spec
    files = own_files(spec)
    key = (replace(all_of(reading_of(spec)), path=None), fingerprint_of_own(files, spec))
    found = cached_arrays("look", key, lambda: _look(files, spec))
    classes = tuple(found["classes"].tolist())
    if spec.holds == "tokens":
        return replace(spec, classes=classes, label=spec.label or LABEL)
    if spec.holds == "series":
        columns, length = tuple(found["columns"].tolist()), int(found["length"])
        known = replace(
            spec, classes=classes, label=spec.label or LABEL, columns=columns, length=length
        )
    else:
        size, channels = found["shape"].tolist()
        known = replace(spec, classes=classes, image_size=size, channels=channels)
    key = (replace(reading_of(known), path=None), key[1])
    measured = cached_arrays("mean", key, lambda: _measure(known))
    mean, std = (tuple(measured[name].tolist()) for name in ("mean", "std"))
    return replace(known, mean=spec.mean or mean, std=spec.std or std)


def _look(files: OwnFiles, spec: DatasetSpec) -> Arrays:
    train = training_list(files, spec)
    found = {"classes": np.array(classes_of(train, files, spec))}
    if spec.holds == "series":
        length = np.array(train.inputs.shape[2])
        return found | {"columns": np.array(train.columns), "length": length}
    if spec.holds != "images":
        return found
    return found | {"shape": np.array(_shape(train, spec))}


def classes_of(train: Listed, files: OwnFiles, spec: DatasetSpec) -> tuple[str, ...]:
    """Return the classes in order: as the spec or the files say, else those that there are."""
    said = spec.classes or train.names
    classes = said or ordered(label for label in train.labels if label is not None)
    if len(classes) < 2:
        raise DataError(
            f"{files.path}: {len(train)} examples of one class ({', '.join(classes)}): expected at "
            f"least 2 classes, {TOLD_BY[files.kind]}"
        )
    return classes


def _shape(train: Listed, spec: DatasetSpec) -> tuple[int, int]:
    """Return the size and the channels of the images, as the spec says or as all of them are."""
    if spec.image_size is not None and spec.channels is not None:
        return spec.image_size, spec.channels
    seen = look_at(train)
    raise_if(seen.broken)
    return spec.image_size or _common_size(seen), spec.channels or seen.channels


def _common_size(seen: Seen) -> int:
    sizes = sorted(seen.sizes)
    (width, height) = sizes[0]
    if len(sizes) == 1 and width == height:
        return width
    few = [f"{seen.first[size]} has {size[0]}x{size[1]} pixels" for size in (sizes[0], sizes[-1])]
    found = f"images of {len(sizes)} sizes, {few[0]} and {few[1]}" if sizes[1:] else few[0]
    raise DataError(
        f"{found}: expected squares of one size, or dataset.image_size, which all are scaled and "
        "cut to"
    )


def look_at(images: Listed) -> Seen:
    """Return the sizes and channels of images, and which of them cannot be opened."""
    inputs, seen = images.inputs, Seen(Counter(), {}, 0)
    if isinstance(inputs, np.ndarray):
        count, channels, height, width = inputs.shape
        size = width, height
        return Seen(Counter({size: count}), {size: images.place(0)}, count * (channels == 1))
    grey = 0
    for row, file in enumerate(inputs):
        if isinstance(file, Broken):
            seen.broken.append(file)
            continue
        try:
            with opened_image(file) as image:
                seen.sizes[image.size] += 1
                seen.first.setdefault(image.size, images.place(row))
                grey += image.mode in GREY_MODES
        except ValueError as error:
            seen.broken.append(Broken(images.place(row), f" cannot be decoded: {error}"))
    return replace(seen, grey=grey)


def _measure(spec: DatasetSpec) -> Arrays:
    measure = of_columns if spec.holds == "series" else mean_and_deviation
    mean, std = measure(own_arrays(spec)["train"])
    return {"mean": mean, "std": std}


def mean_and_deviation(
    images: NDArray[np.uint8],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean and the deviation of each channel of [n, channels, height, width], 0 to 1.

    Sums are of whole numbers, so the result is exact. A channel of one value has the deviation 1.
    """
    counts = np.zeros((images.shape[1], 256), np.int64)
    for start in range(0, len(images), IMAGES_AT_A_TIME):
        part = images[start : start + IMAGES_AT_A_TIME]
        for channel in range(images.shape[1]):
            counts[channel] += np.bincount(part[:, channel].ravel(), minlength=256)
    found = [_mean_and_deviation(channel.tolist()) for channel in counts]
    mean, std = np.array(found).round(DIGITS).T
    return mean, std


def _mean_and_deviation(counts: list[int]) -> tuple[float, float]:
    """Return them of so many pixels of each value."""
    total = sum(counts)
    once = sum(count * value for value, count in enumerate(counts))
    squared = sum(count * value**2 for value, count in enumerate(counts))
    deviation = math.sqrt(total * squared - once**2) / (255 * total)
    return once / (255 * total), max(deviation, 10**-DIGITS) if deviation else 1.0


def of_columns(
    series: NDArray[np.float32],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean and the deviation of each channel of [n, channels, length].

    A channel of one value has the deviation 1.
    """
    mean, std = series.mean((0, 2), dtype=np.float64), series.std((0, 2), dtype=np.float64)
    constant = series.max((0, 2)) == series.min((0, 2))
    return _significant(mean), np.where(constant, 1.0, _significant(std))


def _significant(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return numbers of as many digits as are worth keeping."""
    return np.array([float(f"{number:.9g}") for number in numbers])
