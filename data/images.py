"""Labelled images in memory, served in normalised batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.augment import augment as augmented
from data.catalog import DatasetFacts
from data.formats import Split


@dataclass(frozen=True, eq=False)
class ImageData:
    """Images as bytes, a quarter of their size as floats: normalised when they are served."""

    images: Tensor
    """uint8 [n, channels, height, width]."""
    labels: Tensor
    """int64 [n]."""
    facts: DatasetFacts

    @classmethod
    def of(
        cls, split: Split, facts: DatasetFacts, rows: NDArray[np.int64] | None = None
    ) -> ImageData:
        """The given rows of a split, copied into memory; without rows all of it, not copied."""
        images, labels = split if rows is None else (split.images[rows], split.labels[rows])
        return cls(torch.from_numpy(images), torch.from_numpy(labels), facts)

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        """How many classes the data set has, whether or not these images show them all."""
        return self.facts.num_classes

    @property
    def in_channels(self) -> int:
        """1 for grey, 3 for colour."""
        return self.facts.in_channels

    @property
    def image_size(self) -> int:
        """Height and width in pixels."""
        return self.facts.image_size

    def to(self, device: torch.device | str) -> ImageData:
        """The same images on a device, where batches are then cut, augmented and normalised."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def batches(
        self,
        batch_size: int,
        *,
        shuffle: bool = False,
        augment: bool = False,
        generator: torch.Generator | None = None,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """One pass over the data as (float32 images, int64 labels); the last batch may be short.

        All chance comes from `generator`, a CPU one: its state decides order, crops and flips.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}: expected at least 1")
        if generator is None and (shuffle or augment):
            raise ValueError("shuffle and augment need a generator to draw from")
        order = torch.randperm(len(self), generator=generator) if shuffle else None
        return self._batches(batch_size, order, generator if augment else None)

    def _batches(
        self, batch_size: int, order: Tensor | None, chance: torch.Generator | None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        scale, shift = self._scale_and_shift()
        order = None if order is None else order.to(self.labels.device)
        for start in range(0, len(self), batch_size):
            batch = slice(start, start + batch_size)
            if order is None:
                images, labels = self.images[batch], self.labels[batch]
            else:
                images = self.images.index_select(0, order[batch])
                labels = self.labels.index_select(0, order[batch])
            if chance is not None:
                images = augmented(images, self.facts.crop_padding, self.facts.flip, chance)
            yield torch.mul(images, scale).add_(shift), labels

    def _scale_and_shift(self) -> tuple[Tensor, Tensor]:
        """(x / 255 - mean) / std, as one product and one sum."""
        mean, std = (
            torch.tensor(numbers, dtype=torch.float64).view(1, -1, 1, 1)
            for numbers in (self.facts.mean, self.facts.std)
        )
        device = self.images.device
        return (1 / (255 * std)).float().to(device), (-mean / std).float().to(device)
