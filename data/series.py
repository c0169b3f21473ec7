"""Labelled series of numbers in memory, served in normalised batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.catalog import SeriesFacts
from data.examples import Batches, Examples, Rows, taken


class SeriesSplit(NamedTuple):
    """Series [n, channels, length] and their labels."""

    series: NDArray[np.float32]
    labels: NDArray[np.int64]
    places: NDArray[np.int64] | None = None
    """Where each begins, if they are windows of a table: one follows another if it begins a
    window's length behind it. Between runs of rows there is a gap."""


class SeriesSplits(NamedTuple):
    """The series to deal out to clients, and those nobody trains on."""

    train: SeriesSplit
    test: SeriesSplit


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

    def _served(self, batches: Iterator[Rows], chance: torch.Generator | None) -> Batches:
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
    """Return what is to be taken off each channel, and what the rest is to be multiplied by."""
    means, deviations = (
        torch.tensor(numbers, dtype=torch.float64).view(1, -1, 1) for numbers in (mean, std)
    )
    return means.float().to(device), (1 / deviations).float().to(device)
