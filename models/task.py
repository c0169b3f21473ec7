"""The task of a network: the network's name, and the data it reads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from models.families import SlicedNetwork, build, family
from models.slicing import Slice


@dataclass(frozen=True)
class Task:
    """A full network and the shape of its data, from which any slice can be built."""

    model: str
    num_classes: int = 10
    in_channels: int = 3
    image_size: int = 32
    options: tuple[tuple[str, Any], ...] = ()
    """The family's own options, as pairs: a task is a cache's key, so it must be hashable."""
    tokens: int = 128
    """Most tokens of a text, for a network that reads tokens."""
    length: int = 1
    """Number of steps of a series, for a network that reads series."""

    @property
    def units(self) -> int:
        """The number of units of the full network: blocks, layers."""
        return family(self.model).units

    @property
    def tells_words(self) -> bool:
        """True for a language model."""
        return family(self.model).reads == "language"

    @property
    def answers(self) -> int:
        """The number of answers per input: a language model has one for each token."""
        return self.tokens if self.tells_words else 1

    @property
    def whole(self) -> Slice:
        """The full network's slice, with the exits that are part of it."""
        own = family(self.model).own_exits
        return Slice(exits=(*own, self.units)) if own else Slice()

    def build(self, slice: Slice, device: str = "cpu") -> SlicedNetwork:
        """Return the network of a slice; on the device `meta` it takes no memory."""
        options = dict(self.options)
        return build(self.model, self.num_classes, self.in_channels, slice, device, **options)

    def class_rows(self, slice: Slice) -> frozenset[str]:
        """Return the names of a slice's tensors that have a row for each class."""
        return _class_rows(self, slice)

    def input(self, batch: int, device: torch.device | str = "cpu") -> Tensor:
        """Return a batch of inputs of the largest size, with arbitrary values."""
        known = family(self.model)
        if not known.has_channels:
            return torch.ones(batch, self.tokens, dtype=torch.int64, device=device)
        images = known.reads == "images"
        sides = (self.image_size, self.image_size) if images else (self.length,)
        return torch.zeros(batch, self.in_channels, *sides, device=device)


@cache
def _class_rows(task: Task, slice: Slice) -> frozenset[str]:
    """Find them by building a network for one more class: their shapes differ."""
    state = task.build(slice, "meta").state_dict()
    other = replace(task, num_classes=task.num_classes + 1).build(slice, "meta").state_dict()
    return frozenset(name for name, tensor in state.items() if other[name].shape != tensor.shape)
