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
    """A full network and the shape of its data: all that a slice needs besides itself."""

    model: str
    num_classes: int = 10
    in_channels: int = 3
    image_size: int = 32
    options: tuple[tuple[str, Any], ...] = ()
    """The family's own options, as pairs: a task is a cache's key."""
    tokens: int = 128
    """The longest text, for a network that reads tokens rather than images."""
    length: int = 1
    """The steps of a series, for a network that reads these."""

    @property
    def units(self) -> int:
        """Return how many units the full network has: blocks, layers."""
        return family(self.model).units

    @property
    def tells_words(self) -> bool:
        """Return whether the network is a language model."""
        return family(self.model).reads == "language"

    @property
    def answers(self) -> int:
        """Return the number of answers for one input: a language model has one for each token."""
        return self.tokens if self.tells_words else 1

    @property
    def whole(self) -> Slice:
        """Return the full network's slice, with the exits that are part of it."""
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
        """Return a batch of the largest inputs there are; their values mean nothing."""
        known = family(self.model)
        if not known.has_channels:
            return torch.ones(batch, self.tokens, dtype=torch.int64, device=device)
        images = known.reads == "images"
        sides = (self.image_size, self.image_size) if images else (self.length,)
        return torch.zeros(batch, self.in_channels, *sides, device=device)


@cache
def _class_rows(task: Task, slice: Slice) -> frozenset[str]:
    """Find them by a network for one class more: it has one row more of them."""
    state = task.build(slice, "meta").state_dict()
    other = replace(task, num_classes=task.num_classes + 1).build(slice, "meta").state_dict()
    return frozenset(name for name, tensor in state.items() if other[name].shape != tensor.shape)
