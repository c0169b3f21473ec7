"""Series of numbers: each channel is normalised with the mean and deviation of its column."""

from __future__ import annotations

import numpy as np
import torch

from data.catalog import SeriesFacts
from data.examples import SeriesData, SeriesSplit, with_overlaps

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


def test_windows_between_two_neighbours_are_trained_on_too() -> None:
    """Four windows of one run, of which a client trains on 0, 1 and 3: 2 is not to be touched."""
    steps = np.arange(16, dtype=np.float32).reshape(4, 1, 4)
    split = SeriesSplit(steps, np.array([5, 5, 5, 5]), np.array([0, 4, 8, 12]))
    found = with_overlaps(split, np.array([3, 1, 0]), stride=2)
    assert found.series[:, 0].tolist() == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [12, 13, 14, 15],
        [2, 3, 4, 5],
    ]
    assert found.labels.tolist() == [5, 5, 5, 5]
    every = with_overlaps(split, np.array([0, 1]), stride=1).series[:, 0, 0]
    assert every.tolist() == [0, 4, 1, 2, 3]


def test_windows_of_two_runs_are_no_neighbours() -> None:
    split = SeriesSplit(np.zeros((2, 1, 4), np.float32), np.array([0, 1]), np.array([0, 5]))
    assert len(with_overlaps(split, np.array([0, 1]), stride=2).labels) == 2
