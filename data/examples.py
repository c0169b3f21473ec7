"""Labelled examples in memory, served in batches: the part that images and texts share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any, Self

import torch
from torch import Tensor

from data.catalog import DatasetFacts

Batches = Iterator[tuple[Tensor, Tensor]]
Rows = slice | Tensor
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

    def _rows(self, batch_size: int, order: Tensor | None) -> Iterator[Rows]:
        order = None if order is None else order.to(self.labels.device)
        for start in range(0, len(self), batch_size):
            batch = slice(start, start + batch_size)
            yield batch if order is None else order[batch]

    def _served(self, batches: Iterator[Rows], chance: torch.Generator | None) -> Batches:
        """Yield each batch as a network reads it; chance is drawn from `chance`."""
        raise NotImplementedError


def taken(tensor: Tensor, rows: Rows) -> Tensor:
    """Return the rows of a tensor, not copied if they are neighbours."""
    return tensor[rows] if isinstance(rows, slice) else tensor.index_select(0, rows)
