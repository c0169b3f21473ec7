"""Samples on their way through a node: a request's features, and the part's results for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from models.families import Features


@dataclass(frozen=True, eq=False)
class Samples:
    """The samples of a request: inputs, or features after unit `start`."""

    start: int
    features: Features

    def __len__(self) -> int:
        return len(self.features[0])

    @property
    def key(self) -> object:
        """Key that samples must share to be computed together."""
        return self.start, tuple(each.shape[1:] for each in self.features)

    def rows(self, kept: Tensor) -> Samples:
        """Return some of the samples."""
        return Samples(self.start, tuple(each[kept] for each in self.features))


@dataclass(frozen=True, eq=False)
class Computed:
    """The part's results for samples, and the features to pass on to a parent."""

    classes: Tensor
    confidence: Tensor
    onward: Samples


Compute = Callable[[Samples], Computed]


def compute_all(compute: Compute, batch: Sequence[Samples]) -> list[Computed | Exception]:
    """Compute several requests, one pass for all of one key, and return the result of each.

    If a pass fails, its requests are computed one by one, so that a bad one fails alone.
    """
    results: dict[int, Computed | Exception] = {}
    groups: dict[object, list[int]] = {}
    for number, samples in enumerate(batch):
        groups.setdefault(samples.key, []).append(number)
    for numbers in groups.values():
        together = [batch[number] for number in numbers]
        try:
            found: list[Computed | Exception] = list(_apart(compute(joined(together)), together))
        except Exception as error:
            found = [error] if len(numbers) == 1 else _one_by_one(compute, together)
        results.update(zip(numbers, found, strict=True))
    return [results[number] for number in range(len(batch))]


def joined(batch: Sequence[Samples]) -> Samples:
    """Return samples of one key as one batch."""
    if len(batch) == 1:
        return batch[0]
    columns = zip(*(each.features for each in batch), strict=True)
    return Samples(batch[0].start, tuple(torch.cat(column) for column in columns))


def halves(samples: Samples) -> tuple[Samples, Samples]:
    """Return the first and the second half of at least two samples."""
    rows = torch.arange(len(samples))
    return samples.rows(rows[: len(rows) // 2]), samples.rows(rows[len(rows) // 2 :])


def _one_by_one(compute: Compute, batch: Sequence[Samples]) -> list[Computed | Exception]:
    return [result for each in batch for result in compute_all(compute, [each])]


def _apart(found: Computed, batch: Sequence[Samples]) -> list[Computed]:
    """Return each request's part of a joint result."""
    sizes = [len(samples) for samples in batch]
    columns = [found.classes, found.confidence, *found.onward.features]
    rows = zip(*(torch.split(column, sizes) for column in columns), strict=True)
    start = found.onward.start
    return [Computed(row[0], row[1], Samples(start, tuple(row[2:]))) for row in rows]
