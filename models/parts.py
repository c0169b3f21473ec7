"""Runs a network in parts: from a unit up to an exit, with only the tensors of that part.

One machine runs a network's first units, another continues from the features after the last of
them. Tensors outside a part are absent: not stored, and not loaded.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from models.families import Features, SlicedNetwork
from models.frozen import keep_statistics
from models.loading import mould
from models.slicing import Slice, SliceError, State
from models.task import Task


class Part(nn.Module):
    """The units of a network after number `first`, up to the exit after unit `last`.

    With `first` 0 it reads inputs. An ensemble answers with the mean of the logits of all exits up
    to its own; the running sum is then the first of the features that it passes on.
    """

    def __init__(self, net: SlicedNetwork, first: int, last: int, ensemble: bool = False) -> None:
        super().__init__()
        if type(net).walk is not SlicedNetwork.walk:
            raise SliceError(
                f"{type(net).__name__} cannot be run in parts: it says how to walk, and not how it "
                "enters, what its units and its final head are (`models/families.py`)"
            )
        if not (0 <= first < last <= net.depth and net.has_exit(last)):
            raise SliceError(
                f"no part from behind unit {first} to an exit behind unit {last}: exits follow "
                f"{', '.join(map(str, exits_of(net)))}"
            )
        self.net, self.first, self.last, self.ensemble = net, first, last, ensemble
        self.heads = [unit for unit in exits_of(net) if unit <= last] if ensemble else [last]

    def forward(self, given: Features, start: int | None = None) -> tuple[Tensor, Features]:
        """Return the logits and the features to pass on, from inputs or features after `start`."""
        start = self.first if start is None else start
        total, features = None, given
        if start == 0:
            (x,) = given
            features = self.net.enter(x)
        elif self.ensemble:
            total, *others = given
            features = tuple(others)
        for number in range(start + 1, self.last + 1):
            features = self.net.run_unit(number, features)
            if number in self.heads:
                logits = self.net.run_head(number, features)
                total = logits if total is None else total + logits
        assert total is not None  # the last unit has a head
        return total / len(self.heads), (total, *features) if self.ensemble else features

    def tensors(self, given: Features) -> dict[str, Tensor]:
        """Return the network's tensors that the part reads when it runs, by name."""
        read = _read_by(lambda: self(given))
        return {name: t for name, t in self.net.state_dict(keep_vars=True).items() if id(t) in read}


def exits_of(net: SlicedNetwork) -> list[int]:
    """Return the units that a network's exits follow."""
    return [number for number in range(1, net.depth + 1) if net.has_exit(number)]


def features_read(part: Part, given: Features, start: int) -> tuple[bool, ...]:
    """Return, for each feature after unit `start`, whether the part reads it."""
    read = _read_by(lambda: part(given, start))
    return tuple(id(each) in read for each in given)


def load_part(
    task: Task, slice: Slice, first: int, last: int, ensemble: bool, tensors: State
) -> Part:
    """Return a part with the given tensors, and no others in memory."""
    net = keep_statistics(copy.deepcopy(mould(task, slice)).eval())
    unknown = sorted(tensors.keys() - net.state_dict().keys())
    if unknown:
        raise SliceError(f"{unknown[0]} is no tensor of {task.model} with {slice}")
    # Tensors that the part does not read stay on `meta`.
    net.load_state_dict(tensors, strict=False, assign=True)
    absent = net.state_dict().keys() - tensors.keys()
    for prefix, module in net.named_modules():
        for name, buffer in list(module.named_buffers(recurse=False)):
            if ".".join(filter(None, (prefix, name))) in absent:
                setattr(module, name, buffer.to("meta"))
    return Part(net.requires_grad_(False), first, last, ensemble)


class _Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the tensors that are read."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tensors: dict[int, Tensor] = {}
        """Tensors by identity: while they are held here, no other tensor gets the same one."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = (each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor))
        self.tensors.update((id(each), each) for each in found)
        return function(*args, **(kwargs or {}))


@torch.no_grad()
def _read_by(run: Callable[[], object]) -> Collection[int]:
    """Return the identities of all tensors that are read during a call."""
    reads = _Reads()
    with reads:
        run()
    return reads.tensors.keys()
