"""Labelled images in memory, served in normalised batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.augment import augment as augmented
from data.catalog import ImageFacts
from data.examples import Batches, Examples, Rows, taken
from data.formats import ImageSplit


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

    def _served(self, batches: Iterator[Rows], chance: torch.Generator | None) -> Batches:
        """Yield float32 images, cropped and mirrored by chance."""
        scale, shift = scale_and_shift(self.facts.mean, self.facts.std, self.images.device)
        for rows in batches:
            images, labels = taken(self.images, rows), taken(self.labels, rows)
            if chance is not None:
                images = augmented(images, self.facts.crop_padding, self.facts.flip, chance)
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
