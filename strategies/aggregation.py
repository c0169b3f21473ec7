"""The nested mean: each entry of the global state is averaged over the clients that held it.

ScaleFL's Algorithm 3 and NeFL's NeFedAvg. Replies are folded one at a time into running sums and
can then be dropped. The sums are integers, in steps of 2^-40: integer addition is exact, so the
order of the replies cannot change a bit of the result, and a bad reply can be taken out again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numba import njit, prange
from numpy.typing import NDArray
from torch import Tensor

from models.slicing import Region, SliceMap, State

WEIGHT_BITS = 30
"""Weights are counted in steps of 2^-30 of the unit."""
FLOAT_BITS, INTEGER_BITS = 40, 10
"""A value of weight 1 is summed in steps of 2^-40; of integer tensors, in steps of 2^-10."""
CAPACITY = 2.0**62
"""What a sum may reach."""
PARALLEL_FROM = 1 << 15
"""Values in a tensor from which several threads fold it faster than one."""
MAGIC, MAGIC_REACH = 1.5 * 2.0**52, 2.0**50
"""A double this large has no fraction bits: a number below MAGIC_REACH that is added to it comes
out rounded, in the low bits, which is faster than rounding and converting it, and the same."""
MAGIC_BITS = np.float64(MAGIC).view(np.int64)
MAPS_BEFORE_COUNTING = 8
"""Slice maps whose weights are kept aside before they are counted entry by entry."""

Sums = NDArray[np.int64]


class RefusedStateError(ValueError):
    """A client's state that cannot be averaged; the sums are as they were before."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason


class NestedMean:
    """A mean per entry over the states that held it, in memory that does not grow with them.

    `unit` is the weight of a typical client: 1, or about the mean number of examples.
    """

    def __init__(self, unit: float = 1.0) -> None:
        if not 0 < unit < float("inf"):
            raise ValueError(f"unit {unit} is not a positive number")
        self.unit = unit
        self._totals: dict[str, Sums] = {}
        self._counts: dict[str, Sums] = {}
        self._uncounted: dict[SliceMap, int] = {}
        self._reach: dict[str, float] = {}
        self._lightest = 2**63 - 1

    def add(self, state: State, slice_map: SliceMap, weight: float = 1.0) -> None:
        """Fold in one client's state, or raise `RefusedStateError` and change nothing."""
        steps = self._weight_steps(weight)
        _check_form(state, slice_map)
        reach: dict[str, float] = {}
        for name, region in slice_map.regions.items():
            scale = _scale(region.dtype, steps)
            peak = self._add(region, state[name], scale)
            reach[name] = self._reach.get(region.source, 0.0) + peak * scale
            if not reach[name] <= CAPACITY:
                self._take_back(reach, state, slice_map, steps)
                reason = "too-large" if math.isfinite(peak) else "non-finite"
                raise RefusedStateError(reason, f"{name} holds values up to {peak:g}")
        for name, sums in reach.items():
            self._reach[slice_map.regions[name].source] = sums
        self._lightest = min(self._lightest, steps)
        self._uncounted[slice_map] = self._uncounted.get(slice_map, 0) + steps
        if len(self._uncounted) > MAPS_BEFORE_COUNTING:
            self._count()

    def result(self, previous: State) -> dict[str, Tensor]:
        """The mean, where anyone held an entry; elsewhere `previous`, exactly.

        A mean that differs from `previous` by less than the sums can tell is `previous` too, so
        slices that come back untrained leave the state as it was, bit for bit.
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
        """All sums as flat, named tensors."""
        self._count()
        return {
            "unit": torch.tensor(self.unit, dtype=torch.float64),
            "lightest": torch.tensor(self._lightest),
            **{
                f"reach.{name}": torch.tensor(r, dtype=torch.float64)
                for name, r in self._reach.items()
            },
            **{f"total.{name}": torch.from_numpy(t).clone() for name, t in self._totals.items()},
            **{f"count.{name}": torch.from_numpy(c).clone() for name, c in self._counts.items()},
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.unit, self._lightest = float(state["unit"]), int(state["lightest"])
        self._uncounted = {}
        self._reach = {name: float(tensor) for name, tensor in _under("reach.", state)}
        self._totals = {name: tensor.numpy().copy() for name, tensor in _under("total.", state)}
        self._counts = {name: tensor.numpy().copy() for name, tensor in _under("count.", state)}

    def _weight_steps(self, weight: float) -> int:
        relative = weight / self.unit
        if not 2.0**-10 <= relative <= 2.0**20:
            raise ValueError(
                f"weight {weight} is not within 2^-10 to 2^20 of the unit {self.unit}; "
                "give NestedMean a typical weight as its unit"
            )
        return round(relative * (1 << WEIGHT_BITS))

    def _take_back(
        self, names: Iterable[str], state: State, slice_map: SliceMap, steps: int
    ) -> None:
        for name in names:
            region = slice_map.regions[name]
            self._add(region, state[name], -_scale(region.dtype, steps))

    def _add(self, region: Region, tensor: Tensor, scale: float) -> float:
        """Add `tensor * scale` to the region's sums; return the largest magnitude in the tensor."""
        if region.source not in self._totals:
            self._totals[region.source] = np.zeros(math.prod(region.full), np.int64)
        values = _flat(tensor)
        if not values.size:
            return 0.0
        floats, bits, magnitude = _FORMS[values.dtype.itemsize]
        add_runs = _add_runs if values.size < PARALLEL_FROM else _add_runs_in_parallel
        limits = np.array([MAGIC_REACH / abs(scale), CAPACITY / abs(scale)], floats).view(bits)
        total = self._totals[region.source]
        peak = add_runs(total, *region.runs, values, values.view(bits), magnitude, scale, limits)
        return float(bits(peak).view(floats))

    def _count(self) -> None:
        """Count the weights kept aside into their entries."""
        for slice_map, steps in self._uncounted.items():
            for region in slice_map.regions.values():
                if region.source not in self._counts:
                    self._counts[region.source] = np.zeros(math.prod(region.full), np.int64)
                _add_weight(self._counts[region.source], *region.runs, steps)
        self._uncounted = {}

    def _mean(self, name: str, previous: Tensor) -> Tensor:
        total, count = self._totals[name], self._counts[name]
        if total.size != previous.numel():
            raise ValueError(f"{name}: {total.size} sums, but {previous.numel()} previous values")
        before = previous.detach().cpu().double().contiguous().numpy().reshape(-1)
        per_weight = _scale(previous.dtype, 1)
        blur = 0.75 / (per_weight * self._lightest)  # half a step each, and room for rounding
        mean = np.empty_like(before)
        _divide(total, count, per_weight, before, blur, mean)
        result = torch.from_numpy(mean).view(previous.shape)
        if not previous.dtype.is_floating_point:
            result = result.round()
        return result.to(previous.device, previous.dtype)


def _check_form(state: State, slice_map: SliceMap) -> None:
    missing = sorted(slice_map.regions.keys() - state.keys())
    extra = sorted(state.keys() - slice_map.regions.keys())
    if missing or extra:
        raise RefusedStateError("names", f"missing {missing}, not expected {extra}")
    for name, region in slice_map.regions.items():
        if tuple(state[name].shape) != region.shape:
            found = tuple(state[name].shape)
            raise RefusedStateError("shape", f"{name} is {found}, expected {region.shape}")
        if state[name].dtype != region.dtype:
            raise RefusedStateError(
                "dtype", f"{name} is {state[name].dtype}, expected {region.dtype}"
            )


def _under(prefix: str, state: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    return [(key.removeprefix(prefix), t) for key, t in state.items() if key.startswith(prefix)]


def _scale(dtype: torch.dtype, steps: int) -> float:
    bits = FLOAT_BITS if dtype.is_floating_point else INTEGER_BITS
    return steps * 2.0 ** (bits - WEIGHT_BITS)


def _flat(tensor: Tensor) -> NDArray[np.floating[Any]]:
    """The values as a flat NumPy array of float32, or of float64 if they are anything else."""
    if tensor.dtype != torch.float32:
        tensor = tensor.double()
    values: NDArray[np.floating[Any]] = tensor.detach().cpu().numpy().reshape(-1)
    return values


_FORMS: dict[int, tuple[Any, Any, Any]] = {
    4: (np.float32, np.uint32, np.uint32(2**31 - 1)),
    8: (np.float64, np.uint64, np.uint64(2**63 - 1)),
}
"""By size: a float type, the integers of its size, and the mask of all but its sign bit.

Without its sign a float orders as that integer does, with infinity above all numbers and NaN above
infinity: one integer maximum finds both the largest magnitude and a bad value.
"""


@njit(cache=True)
def _add_run(sums, values, bits, magnitude, scale, limits):  # type: ignore[no-untyped-def]
    """Add `values * scale`, rounded, unless one is beyond the limit; return the largest's bits."""
    peak = bits[0] & magnitude
    for i in range(1, bits.size):
        peak = max(peak, bits[i] & magnitude)
    if peak <= limits[0]:
        for i in range(values.size):
            sums[i] += np.float64(values[i] * scale + MAGIC).view(np.int64) - MAGIC_BITS
    elif peak <= limits[1]:
        for i in range(values.size):
            sums[i] += np.int64(np.rint(values[i] * scale))
    return peak


@njit(cache=True)
def _add_runs(total, starts, length, values, bits, magnitude, scale, limits):  # type: ignore[no-untyped-def]
    peaks = np.empty(starts.size, bits.dtype)
    for run in range(starts.size):
        sums, part = (
            total[starts[run] : starts[run] + length],
            slice(run * length, (run + 1) * length),
        )
        peaks[run] = _add_run(sums, values[part], bits[part], magnitude, scale, limits)
    return peaks.max()


@njit(parallel=True, cache=True)
def _add_runs_in_parallel(total, starts, length, values, bits, magnitude, scale, limits):  # type: ignore[no-untyped-def]
    peaks = np.empty(starts.size, bits.dtype)
    for run in prange(starts.size):
        sums, part = (
            total[starts[run] : starts[run] + length],
            slice(run * length, (run + 1) * length),
        )
        peaks[run] = _add_run(sums, values[part], bits[part], magnitude, scale, limits)
    return peaks.max()


@njit(parallel=True, cache=True)
def _add_weight(count, starts, length, steps):  # type: ignore[no-untyped-def]
    for run in prange(starts.size):
        entries = count[starts[run] : starts[run] + length]
        for i in range(length):
            entries[i] += steps


@njit(parallel=True, cache=True)
def _divide(total, count, per_weight, before, blur, mean):  # type: ignore[no-untyped-def]
    for i in prange(total.size):
        mean[i] = before[i]
        if count[i] > 0:
            quotient = total[i] / (count[i] * per_weight)
            if abs(quotient - before[i]) > blur:
                mean[i] = quotient
