"""How far a reply may be from the state that it started from: generous, and the same for all.

A client whose training went wild, or that lies, is refused before anything of it is added; what
other clients sent has no part in that, so the order of the replies has none either.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numba import njit
from torch import Tensor

from models.slicing import Region, SliceMap, State
from strategies.aggregation.exact_sums import flat
from strategies.aggregation.nested_mean import RefusedStateError, check_form


@dataclass(frozen=True)
class UpdateBounds:
    """The largest update of a tensor that is taken, relative to what the tensor was.

    Both are multiples of the tensor's own size at the start of the round, or of 1 where that is
    less: statistics start at 0 or 1, and biases at 0.
    """

    value: float = 1e6
    """How much one entry may change: times the tensor's largest magnitude."""
    norm: float = 1e5
    """How much all entries may change together (root mean square): times the tensor's own."""

    def __post_init__(self) -> None:
        for name in ("value", "norm"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}: expected a number above 0")

    def check(self, state: State, slice_map: SliceMap, start: State) -> None:
        """Raise `RefusedStateError` if a tensor is too far from its part of the global `start`."""
        check_form(state, slice_map)
        for name, region in slice_map.regions.items():
            self._check_tensor(name, state[name], region, start[region.source])

    def _check_tensor(self, name: str, tensor: Tensor, region: Region, start: Tensor) -> None:
        if not tensor.numel() or tensor.dtype.is_complex:  # which cannot be averaged at all
            return
        change, size = _measure(flat(start.contiguous()), *region.runs, flat(tensor))
        if not math.isfinite(change[1]):
            if not bool(torch.isfinite(tensor).all()):
                raise RefusedStateError("non-finite", f"{name} holds a value that is not finite")
            raise RefusedStateError("too-large", f"{name} holds values beyond any measure")
        entries = math.sqrt(tensor.numel())
        largest = self.value * max(1.0, size[0])
        if change[0] > largest:
            raise RefusedStateError(
                "too-large",
                f"an entry of {name} changed by {change[0]:g}, more than max_update.value allows "
                f"({largest:g})",
            )
        moved, most = math.sqrt(change[1]) / entries, math.sqrt(size[1]) / entries
        if moved > self.norm * max(1.0, most):
            raise RefusedStateError(
                "too-large",
                f"{name} changed by {moved:g} (root mean square), more than max_update.norm allows "
                f"({self.norm * max(1.0, most):g})",
            )


@njit(cache=True)
def _measure(before, starts, length, values):  # type: ignore[no-untyped-def]
    """Return the peak and the sum of squares of what changed, and of what was there before.

    What was no number before counts as 0: whatever a client makes of it is its change.
    """
    change, size = np.zeros(2), np.zeros(2)
    for run in range(starts.size):
        old = before[starts[run] : starts[run] + length]
        new = values[run * length : (run + 1) * length]
        for i in range(length):
            was = np.float64(old[i]) if np.isfinite(old[i]) else 0.0
            by = abs(np.float64(new[i]) - was)
            change[0], size[0] = max(change[0], by), max(size[0], abs(was))
            change[1] += by * by
            size[1] += was * was
    return change, size
