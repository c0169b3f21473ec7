"""Labelled examples in memory, served in batches: images, texts, running texts and series."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, NamedTuple, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from data.catalog import DatasetFacts, ImageFacts, LanguageFacts, SeriesFacts, TextFacts

Batches = Iterator[tuple[Tensor, Tensor]]
UNKNOWN = -1
"""The label of an example that has none, or whose class is not published (the tests of GLUE)."""
BatchRows = slice | Tensor
"""The examples of a batch: neighbours, or any."""


class Examples:
    """A frozen dataclass of tensors whose rows are examples, and of facts of their data set."""

    labels: Tensor
    facts: DatasetFacts

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> Self:
        """Return the same examples on a device, where batches are then cut and prepared."""
        to_cuda = torch.device(device).type == "cuda"
        return self._made_of(
            lambda tensor: (tensor.pin_memory() if to_cuda else tensor).to(
                device, non_blocking=True
            )
        )

    def at(self, rows: Tensor) -> Self:
        """Return some of the examples."""
        return self._made_of(lambda tensor: tensor.index_select(0, rows))

    def _made_of(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return examples whose tensors are changed."""
        this: Any = self
        tensors = {
            field.name: change(tensor)
            for field in fields(this)
            if isinstance(tensor := getattr(self, field.name), Tensor)
        }
        made: Self = replace(this, **tensors)
        return made

    def batches(
        self,
        batch_size: int,
        *,
        shuffle: bool = False,
        augment: bool = False,
        generator: torch.Generator | None = None,
    ) -> Batches:
        """Pass over the data once as (inputs, int64 labels); the last batch may be short.

        All chance comes from `generator`, a CPU one: its state decides order and augmentation.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}: expected at least 1")
        if generator is None and (shuffle or augment):
            raise ValueError("shuffle and augment need a generator to draw from")
        order = torch.randperm(len(self), generator=generator) if shuffle else None
        return self._served(self._rows(batch_size, order), generator if augment else None)

    def _rows(self, batch_size: int, order: Tensor | None) -> Iterator[BatchRows]:
        order = None if order is None else order.to(self.labels.device)
        for start in range(0, len(self), batch_size):
            batch = slice(start, start + batch_size)
            yield batch if order is None else order[batch]

    def _served(self, batches: Iterator[BatchRows], chance: torch.Generator | None) -> Batches:
        """Yield each batch as a network reads it; chance is drawn from `chance`."""
        raise NotImplementedError


def taken(tensor: Tensor, rows: BatchRows) -> Tensor:
    """Return the rows of a tensor, not copied if they are neighbours."""
    return tensor[rows] if isinstance(rows, slice) else tensor.index_select(0, rows)


# --- images


class ImageSplit(NamedTuple):
    """Images [n, channels, height, width] and their labels."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ImageData(Examples):
    """Images as bytes, a quarter of their size as floats: normalised when they are served."""

    images: Tensor
    """uint8 [n, channels, height, width]."""
    labels: Tensor
    """int64 [n]."""
    facts: ImageFacts

    @classmethod
    def of(
        cls, split: ImageSplit, facts: ImageFacts, rows: NDArray[np.int64] | None = None
    ) -> ImageData:
        """Copy the given rows of a split into memory; without rows take all of it, not copied."""
        images, labels = split if rows is None else (split.images[rows], split.labels[rows])
        return cls(torch.from_numpy(images), torch.from_numpy(labels), facts)

    def _served(self, batches: Iterator[BatchRows], chance: torch.Generator | None) -> Batches:
        """Yield float32 images, cropped and mirrored by chance."""
        scale, shift = scale_and_shift(self.facts.mean, self.facts.std, self.images.device)
        for rows in batches:
            images, labels = taken(self.images, rows), taken(self.labels, rows)
            if chance is not None:
                images = augment(images, self.facts.crop_padding, self.facts.flip, chance)
            yield torch.mul(images, scale).add_(shift), labels


def scale_and_shift(
    mean: Sequence[float], std: Sequence[float], device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Return (x / 255 - mean) / std of each channel as one product and one sum."""
    means, deviations = (
        torch.tensor(numbers, dtype=torch.float64).view(1, -1, 1, 1) for numbers in (mean, std)
    )
    scale, shift = 1 / (255 * deviations), -means / deviations
    return scale.float().to(device), shift.float().to(device)


def augment(images: Tensor, padding: int, flip: bool, generator: torch.Generator) -> Tensor:
    """Crop each image from itself padded with zeros, and mirror it with probability 1/2."""
    batch, device = len(images), images.device
    if padding:
        corners = torch.randint(0, 2 * padding + 1, (2, batch), generator=generator)
        top, left = corners.to(device)
        images = crop(F.pad(images, (padding,) * 4), top, left, images.shape[-1])
    if flip:
        mirrored = torch.randint(0, 2, (batch,), generator=generator).to(device)
        images = mirror(images, mirrored.bool())
    return images


def crop(images: Tensor, top: Tensor, left: Tensor, size: int) -> Tensor:
    """Cut the square of `size` pixels of each image that begins at its own (top, left)."""
    batch, channels, height, width = images.shape
    lines = torch.arange(size, device=images.device)
    planes = torch.arange(batch * channels, device=images.device).view(batch, channels, 1)
    corners = (top * width + left).view(batch, 1, 1)
    starts = planes * (height * width) + corners + lines * width
    # Each line of a crop is a run of neighbours in memory, so copying runs is all there is to do.
    runs = images.flatten().unfold(0, size, 1)
    return runs.index_select(0, starts.flatten()).view(batch, channels, size, size)


def mirror(images: Tensor, mirrored: Tensor) -> Tensor:
    """Exchange left and right of the images that `mirrored` chooses."""
    return torch.where(mirrored.view(-1, 1, 1, 1), images.flip(-1), images)


# --- texts


class TextSplit(NamedTuple):
    """Texts as tokens, padded with 0 to the longest of all, and their labels, row by row."""

    tokens: NDArray[np.int32]
    labels: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TextData(Examples):
    """Texts as 32-bit tokens, half of their size as what a network reads."""

    tokens: Tensor
    """int32 [n, longest], padded with 0."""
    labels: Tensor
    """int64 [n]."""
    facts: TextFacts

    @classmethod
    def of(
        cls, split: TextSplit, facts: TextFacts, rows: NDArray[np.int64] | None = None
    ) -> TextData:
        """Copy the given rows of a split into memory; without rows take all of it, not copied."""
        tokens, labels = split if rows is None else (split.tokens[rows], split.labels[rows])
        return cls(torch.from_numpy(tokens), torch.from_numpy(labels), facts)

    def _served(self, batches: Iterator[BatchRows], chance: torch.Generator | None) -> Batches:
        """Yield int64 tokens, no longer than the batch's longest; texts are not augmented."""
        lengths = (self.tokens != 0).sum(1).cpu()  # once a pass, so that no batch waits for it
        for rows in batches:
            longest = int(taken(lengths, rows if isinstance(rows, slice) else rows.cpu()).max())
            yield taken(self.tokens, rows)[:, :longest].long(), taken(self.labels, rows)


# --- running texts


class LanguageSplit(NamedTuple):
    """Runs of a text, row by row: a row's last word is the next row's first."""

    words: NDArray[np.int32]

    @property
    def labels(self) -> NDArray[np.int64]:
        """One for each row, as other splits have it: nothing depends on which."""
        return self.words[:, 0].astype(np.int64)


@dataclass(frozen=True, eq=False)
class LanguageData(Examples):
    """Runs of a text: an example has as many labels as words, and a network as many answers."""

    inputs: Tensor
    """int32 [n, tokens]."""
    labels: Tensor
    """int32 [n, tokens], the inputs and one word more, without the first."""
    facts: LanguageFacts

    @classmethod
    def of(
        cls, split: LanguageSplit, facts: LanguageFacts, rows: NDArray[np.int64] | None = None
    ) -> LanguageData:
        """Copy the given rows of a split into memory; without rows take all of it, not copied."""
        words = torch.from_numpy(split.words if rows is None else split.words[rows])
        return cls(words[:, :-1], words[:, 1:], facts)

    def _served(self, batches: Iterator[BatchRows], chance: torch.Generator | None) -> Batches:
        """Yield int64 words, and their labels as one row: a language model's answers are one, too.

        Texts are not augmented.
        """
        for rows in batches:
            yield taken(self.inputs, rows).long(), taken(self.labels, rows).long().flatten()


# --- series


class SeriesSplit(NamedTuple):
    """Series [n, channels, length] and their labels."""

    series: NDArray[np.float32]
    labels: NDArray[np.int64]
    places: NDArray[np.int64] | None = None
    """Where each begins, if they are windows of a table: one follows another if it begins a
    window's length behind it. Between runs of rows there is a gap."""


@dataclass(frozen=True, eq=False)
class SeriesData(Examples):
    """Series as they were measured: normalised when they are served."""

    series: Tensor
    """float32 [n, channels, length]."""
    labels: Tensor
    """int64 [n]."""
    facts: SeriesFacts

    @classmethod
    def of(
        cls, split: SeriesSplit, facts: SeriesFacts, rows: NDArray[np.int64] | None = None
    ) -> SeriesData:
        """Copy the given rows of a split into memory; without rows take all of it, not copied."""
        series, labels, _ = split
        if rows is not None:
            series, labels = series[rows], labels[rows]
        return cls(torch.from_numpy(series), torch.from_numpy(labels), facts)

    def _served(self, batches: Iterator[BatchRows], chance: torch.Generator | None) -> Batches:
        """Yield float32 series; they are not augmented."""
        mean, scale = mean_and_scale(self.facts.mean, self.facts.std, self.series.device)
        for rows in batches:
            yield (taken(self.series, rows) - mean).mul_(scale), taken(self.labels, rows)


def with_overlaps(split: SeriesSplit, rows: NDArray[np.int64], stride: int) -> SeriesSplit:
    """Return some windows, and those that begin every `stride` steps between two neighbours.

    So each step of the new ones is in one of the windows that were given.
    """
    assert split.places is not None  # they are windows
    rows = rows[np.argsort(split.places[rows])]
    series, labels, length = split.series[rows], split.labels[rows], split.series.shape[2]
    first = np.flatnonzero(np.diff(split.places[rows]) == length)
    pairs = np.concatenate([series[first], series[first + 1]], axis=2)
    offsets = range(stride, length, stride)
    between = [pairs[:, :, offset : offset + length] for offset in offsets]
    return SeriesSplit(
        np.concatenate([series, *between]),
        np.concatenate([labels, *[labels[first]] * len(between)]),
    )


def mean_and_scale(
    mean: Sequence[float], std: Sequence[float], device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Return the mean to subtract from each channel, and the scale to multiply it by."""
    means, deviations = (
        torch.tensor(numbers, dtype=torch.float64).view(1, -1, 1) for numbers in (mean, std)
    )
    return means.float().to(device), (1 / deviations).float().to(device)


# --- the two splits of a data set

Split = ImageSplit | TextSplit | LanguageSplit | SeriesSplit
Kind = TypeVar("Kind", bound=Split, covariant=True)


class Splits(NamedTuple, Generic[Kind]):
    """The examples to deal out to clients, and those that no client trains on."""

    train: Kind
    test: Kind
