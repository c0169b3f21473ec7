"""A client's update as aggregators see it, and the bounds within which it is accepted."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from models.slicing import Region, Slice, SliceMap, State


class RefusedUpdateError(ValueError):
    """An update that cannot be used; the aggregator that refused it is unchanged."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


@dataclass(frozen=True, eq=False)
class Update:
    """The state that a client has trained, its place in the global state, and its weight."""

    state: State
    map: SliceMap
    weight: float = 1.0
    client: int | None = None
    """Client number, for aggregators that treat clients apart."""
    slice: Slice = field(default_factory=Slice)
    """The slice that was trained, for aggregators that run the network."""
    level: int = 1
    """Level number, for aggregators that compare the clients of a level."""
    start: State = field(default_factory=dict)
    """The global state that the slice was cut from, for aggregators that measure the change."""
    classes: tuple[int, ...] | None = None
    """The classes of the client's training examples; None where the method does not report them."""

    def check_form(self) -> None:
        """Raise `RefusedUpdateError` for names, shapes or types other than the slice's."""
        state, regions = self.state, self.map.regions
        missing = sorted(regions.keys() - state.keys())
        extra = sorted(state.keys() - regions.keys())
        if missing or extra:
            raise RefusedUpdateError("names", f"missing {missing}, not expected {extra}")
        for name, region in regions.items():
            if tuple(state[name].shape) != region.shape:
                found = tuple(state[name].shape)
                raise RefusedUpdateError("shape", f"{name} is {found}, expected {region.shape}")
            if state[name].dtype != region.dtype:
                raise RefusedUpdateError(
                    "dtype", f"{name} is {state[name].dtype}, expected {region.dtype}"
                )


@dataclass(frozen=True)
class UpdateBounds:
    """The largest change of a tensor that is accepted, relative to the tensor before.

    Both bounds are multiples of the tensor's own size at the start of the round, or of 1 if that is
    less: statistics start at 0 or 1, and biases at 0.
    """

    value: float = 1e6
    """Bound of one entry's change, in units of the tensor's largest magnitude."""
    norm: float = 1e5
    """Bound of the root mean square of all entries' changes, in units of the tensor's own."""

    def __post_init__(self) -> None:
        for name in ("value", "norm"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}: expected a number above 0")

    def check(self, update: Update, start: State) -> None:
        """Raise `RefusedUpdateError` if a tensor is too far from its part of the global `start`."""
        update.check_form()
        for name, region in update.map.regions.items():
            self._check_tensor(name, update.state[name], region, start[region.source])

    def _check_tensor(self, name: str, tensor: Tensor, region: Region, start: Tensor) -> None:
        if not tensor.numel() or tensor.dtype.is_complex:  # complex: no mean
            return
        from strategies.aggregation.exact_sums import flat, measure  # numba: not for clients

        change, size = measure(flat(start.contiguous()), *region.runs, flat(tensor))
        if not math.isfinite(change[1]):
            if not bool(torch.isfinite(tensor).all()):
                raise RefusedUpdateError("non-finite", f"{name} holds a value that is not finite")
            raise RefusedUpdateError("too-large", f"{name} holds values beyond any measure")
        entries = math.sqrt(tensor.numel())
        largest = self.value * max(1.0, size[0])
        if change[0] > largest:
            raise RefusedUpdateError(
                "too-large",
                f"an entry of {name} changed by {change[0]:g}, more than max_update.value allows "
                f"({largest:g})",
            )
        moved, most = math.sqrt(change[1]) / entries, math.sqrt(size[1]) / entries
        if moved > self.norm * max(1.0, most):
            raise RefusedUpdateError(
                "too-large",
                f"{name} changed by {moved:g} (root mean square), more than max_update.norm allows "
                f"({self.norm * max(1.0, most):g})",
            )
