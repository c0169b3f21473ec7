"""Series of numbers: each channel is normalised with the mean and deviation of its column."""

from __future__ import annotations

import numpy as np
import torch

from data.catalog import SeriesFacts
from data.series import SeriesData, SeriesSplit

FACTS = SeriesFacts("table", ("sit", "walk"), ("x", "pressure"), 2, (1.0, 101_325.0), (2.0, 0.5))


def split() -> SeriesSplit:
    series = [[[1, 3], [101_325, 101_326]], [[-1, 1], [101_324.5, 101_325]]]
    return SeriesSplit(np.array(series, np.float32), np.array([0, 1]))


def test_batches_are_normalised_by_column() -> None:
    ((series, labels),) = SeriesData.of(split(), FACTS).batches(8)
    assert series.tolist() == [[[0, 1], [0, 2]], [[-1, 0], [-1, 0]]]
    assert series.dtype == torch.float32
    assert labels.tolist() == [0, 1]


def test_serving_leaves_what_was_measured_alone() -> None:
    data = SeriesData.of(split(), FACTS)
    before = data.series.clone()
    for _ in range(2):
        ((series, _),) = data.batches(8, augment=True, generator=torch.Generator())
    assert torch.equal(data.series, before)
    assert series[0, 0].tolist() == [0, 1]


def test_some_rows_are_copied() -> None:
    data = SeriesData.of(split(), FACTS, np.array([1]))
    assert data.labels.tolist() == [1]
    assert data.at(torch.tensor([0])).series.tolist() == [[[-1, 1], [101_324.5, 101_325]]]
