"""How far a reply may be from the state that it started from: generous, and the same for all.

A client whose training went wild, or that lies, is refused before anything of it is added; what
other clients sent has no part in that, so the order of the replies has none either.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from models.slicing import Region, State
from strategies.aggregation.update import RefusedUpdateError, Update


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

    def check(self, update: Update, start: State) -> None:
        """Raise `RefusedUpdateError` if a tensor is too far from its part of the global `start`."""
        update.check_form()
        for name, region in update.map.regions.items():
            self._check_tensor(name, update.state[name], region, start[region.source])

    def _check_tensor(self, name: str, tensor: Tensor, region: Region, start: Tensor) -> None:
        if not tensor.numel() or tensor.dtype.is_complex:  # which cannot be averaged at all
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
