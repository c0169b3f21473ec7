"""The nested mean: each entry of the global state is averaged over the clients that held it.

This is ScaleFL's Algorithm 3 and NeFL's NeFedAvg. Each reply is added to running sums and can then
be dropped. The sums are integers, in steps of 2^-40: integer addition is exact, so the order of the
replies cannot change a bit of the result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from models.slicing import SliceMap, State
from strategies.aggregation.exact_sums import DIGIT_BITS, ExactSums, digits_of, peak, quotient
from strategies.aggregation.update import RefusedUpdateError, Update

STEP_BITS = {torch.float64: 100}
"""Floats are summed in steps of 2^-40, doubles in steps of 2^-100, integers in steps of 1."""
WEIGHT_BITS = 2 * DIGIT_BITS
"""Weights are counted in steps of 2^-60 of the unit."""
LARGEST_FLOAT, LARGEST_INTEGER = 2.0**64, 2.0**53
"""Largest magnitudes accepted: no network has larger floats; beyond 2^53 doubles skip integers."""
MAPS_BEFORE_COUNTING = 8
"""Slice maps whose weights are collected before they are counted entry by entry."""


class NestedMean:
    """A mean per entry over the states that held it, in memory independent of their number.

    Weights of 2^-30 to 2^30 of the `unit` are accepted, and whole multiples of it counted exactly.
    """

    def __init__(self, unit: float = 1.0) -> None:
        if not 0 < unit < float("inf"):
            raise ValueError(f"unit {unit} is not a positive number")
        self.unit = unit
        self._totals: dict[str, ExactSums] = {}
        self._counts: dict[str, ExactSums] = {}
        self._uncounted: dict[SliceMap, int] = {}

    def check(self, update: Update) -> None:
        """Raise `RefusedUpdateError` for an update that cannot be used."""
        self._weight_steps(update.weight)
        update.check_form()
        for name in update.map.regions:
            check_values(name, update.state[name])

    def add(self, update: Update) -> None:
        """Fold in one client's state, or raise `RefusedUpdateError` and change nothing."""
        self.check(update)
        state, slice_map = update.state, update.map
        steps = self._weight_steps(update.weight)
        # From row -2 on: the weight counts in steps of 2^-60, two digits below 1.
        digits = digits_of(steps, -2)
        for name, region in slice_map.regions.items():
            if region.source not in self._totals:
                self._totals[region.source] = ExactSums.of(region)
            self._totals[region.source].add(region, state[name], _scale(region.dtype), digits)
        # All clients of a level share a map: their weights are summed first, and counted once.
        self._uncounted[slice_map] = self._uncounted.get(slice_map, 0) + steps
        if len(self._uncounted) > MAPS_BEFORE_COUNTING:
            self._count()

    def result(self, previous: State) -> dict[str, Tensor]:
        """Return the mean of each entry that a client held, and `previous` exactly elsewhere.

        A mean closer to `previous` than the sums can resolve is `previous`, too, so slices that
        come back untrained leave the state as it was, bit for bit.
        """
        self._count()
        unknown = sorted(self._counts.keys() - previous.keys())
        if unknown:
            raise ValueError(f"the previous state lacks {unknown}, which clients held")
        return {
            name: self._mean(name, tensor) if name in self._counts else tensor
            for name, tensor in previous.items()
        }

    def state_dict(self) -> dict[str, Tensor]:
        """Return all sums as named tensors."""
        self._count()
        state = {"unit": torch.tensor(self.unit, dtype=torch.float64)}
        for kind, sums in (("total", self._totals), ("count", self._counts)):
            for name, each in sums.items():
                state |= {f"{kind}.{key}.{name}": t for key, t in each.state_dict().items()}
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the sums that `state_dict` returned."""
        self.unit, self._uncounted = float(state["unit"]), {}
        self._totals, self._counts = {}, {}
        for kind, sums in (("total", self._totals), ("count", self._counts)):
            for key, rows in state.items():
                if key.startswith(prefix := f"{kind}.rows."):
                    name = key.removeprefix(prefix)
                    sums[name] = ExactSums.restored(rows, state[f"{kind}.lowest.{name}"])

    def _weight_steps(self, weight: float) -> int:
        relative = weight / self.unit
        if not 2.0**-30 <= relative <= 2.0**30:
            raise RefusedUpdateError(
                "weight",
                f"weight {weight} is not within 2^-30 to 2^30 of the unit {self.unit}; "
                "give NestedMean a typical weight as its unit",
            )
        return round(math.ldexp(relative, WEIGHT_BITS))

    def _count(self) -> None:
        """Add the collected weights to the counts of their entries."""
        for slice_map, steps in self._uncounted.items():
            for region in slice_map.regions.values():
                if region.source not in self._counts:
                    self._counts[region.source] = ExactSums.of(region)
                self._counts[region.source].add_weight(region, digits_of(steps, -2))
        self._uncounted = {}

    def _mean(self, name: str, previous: Tensor) -> Tensor:
        total, count = self._totals[name], self._counts[name]
        if total.size != previous.numel():
            raise ValueError(f"{name}: {total.size} sums, but {previous.numel()} previous values")
        scale = _scale(previous.dtype)
        if not previous.dtype.is_floating_point:
            mean = quotient(total, count, scale, previous, tolerance=0.0).round()
        else:
            tolerance = 0.75 / scale  # half a step of rounding, with some margin
            mean = quotient(total, count, scale, previous, tolerance)
        return mean.to(previous.device, previous.dtype)


def check_values(name: str, tensor: Tensor) -> None:
    """Raise `RefusedUpdateError` for a tensor with values that cannot be averaged."""
    if tensor.dtype.is_complex:
        raise RefusedUpdateError("dtype", f"{name} is {tensor.dtype}: expected real numbers")
    largest = peak(tensor)
    if not math.isfinite(largest):
        raise RefusedUpdateError("non-finite", f"{name} holds values up to {largest:g}")
    if largest > (LARGEST_FLOAT if tensor.dtype.is_floating_point else LARGEST_INTEGER):
        raise RefusedUpdateError("too-large", f"{name} holds values up to {largest:g}")


def _scale(dtype: torch.dtype) -> float:
    """Return the number of steps in a value of 1."""
    return 2.0 ** STEP_BITS.get(dtype, 40) if dtype.is_floating_point else 1.0
