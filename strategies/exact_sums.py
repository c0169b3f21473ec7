"""Exact sums of slices: integers, in compiled loops over the runs that a region is made of."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numba import njit, prange
from numpy.typing import NDArray
from torch import Tensor

from models.slicing import Region

CAPACITY = 2.0**62
"""What a sum may reach."""
PARALLEL_FROM = 1 << 17
"""Values in a tensor from which several threads are used. In a simulation clients keep the cores
busy: then threads wait for each other longer than one of them needs for a smaller tensor."""
MAGIC, MAGIC_REACH = 1.5 * 2.0**52, 2.0**50
"""A double this large has no fraction bits: a number below MAGIC_REACH that is added to it comes
out rounded, in the low bits, which is faster than rounding and converting it, and the same."""
MAGIC_BITS = np.float64(MAGIC).view(np.int64)

Sums = NDArray[np.int64]
"""The sums of one global tensor, flat."""

_FORMS: dict[int, tuple[Any, Any, Any]] = {
    4: (np.float32, np.uint32, np.uint32(2**31 - 1)),
    8: (np.float64, np.uint64, np.uint64(2**63 - 1)),
}
"""By size: a float type, the integers of its size, and the mask of all but its sign bit.

Without its sign a float orders as that integer does, with infinity above all numbers and NaN above
infinity: one integer maximum finds both the largest magnitude and a bad value.
"""


def empty_sums(region: Region) -> Sums:
    return np.zeros(math.prod(region.full), np.int64)


def add_tensor(total: Sums, region: Region, tensor: Tensor, scale: float) -> float:
    """Add `tensor * scale`, rounded, to the region's sums; return the tensor's largest magnitude.

    Where that is not a number, or beyond what sums can hold, some of it was not added; adding the
    same with `-scale` takes the rest back, to the bit.
    """
    values = _flat(tensor)
    if not values.size:
        return 0.0
    floats, bits, magnitude = _FORMS[values.dtype.itemsize]
    limits = np.array([MAGIC_REACH / abs(scale), CAPACITY / abs(scale)], floats).view(bits)
    arguments = total, *region.runs, values, values.view(bits), magnitude, scale, limits
    if values.size < PARALLEL_FROM:
        peak = _add_runs(*arguments)
    else:
        peak = _in_parallel(_add_runs_in_parallel, *arguments)
    return float(bits(peak).view(floats))


def add_weight(count: Sums, region: Region, steps: int) -> None:
    """Add one weight to all entries of a region."""
    _add_weight(count, *region.runs, steps)


def quotient(total: Sums, count: Sums, per_weight: float, previous: Tensor, blur: float) -> Tensor:
    """`total / (count * per_weight)`, or `previous` where nothing was counted or within `blur`."""
    before = previous.detach().cpu().double().contiguous().numpy().reshape(-1)
    mean = np.empty_like(before)
    arguments = total, count, per_weight, before, blur, mean
    if mean.size < PARALLEL_FROM:
        _divide(*arguments)
    else:
        _in_parallel(_divide_in_parallel, *arguments)
    return torch.from_numpy(mean).view(previous.shape)


def _in_parallel(loop: Callable[..., Any], *arguments: Any) -> Any:
    """Run a parallel loop and leave torch its threads, which numba sets: they share OpenMP."""
    threads = torch.get_num_threads()
    result = loop(*arguments)
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    return result


def _flat(tensor: Tensor) -> NDArray[np.floating[Any]]:
    """The values as a flat NumPy array of float32, or of float64 if they are anything else."""
    if tensor.dtype != torch.float32:
        tensor = tensor.double()
    values: NDArray[np.floating[Any]] = tensor.detach().cpu().numpy().reshape(-1)
    return values


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
        sums, first, last = total[starts[run] :], run * length, (run + 1) * length
        peaks[run] = _add_run(sums, values[first:last], bits[first:last], magnitude, scale, limits)
    return peaks.max()


@njit(parallel=True, cache=True)
def _add_runs_in_parallel(total, starts, length, values, bits, magnitude, scale, limits):  # type: ignore[no-untyped-def]
    peaks = np.empty(starts.size, bits.dtype)
    for run in prange(starts.size):
        sums, first, last = total[starts[run] :], run * length, (run + 1) * length
        peaks[run] = _add_run(sums, values[first:last], bits[first:last], magnitude, scale, limits)
    return peaks.max()


@njit(cache=True)
def _add_weight(count, starts, length, steps):  # type: ignore[no-untyped-def]
    for run in range(starts.size):
        entries = count[starts[run] : starts[run] + length]
        for i in range(length):
            entries[i] += steps


@njit(cache=True)
def _quotient(total, count, per_weight, before, blur):  # type: ignore[no-untyped-def]
    if count > 0:
        quotient = total / (count * per_weight)
        if abs(quotient - before) > blur:
            return quotient
    return before


@njit(cache=True)
def _divide(total, count, per_weight, before, blur, mean):  # type: ignore[no-untyped-def]
    for i in range(total.size):
        mean[i] = _quotient(total[i], count[i], per_weight, before[i], blur)


@njit(parallel=True, cache=True)
def _divide_in_parallel(total, count, per_weight, before, blur, mean):  # type: ignore[no-untyped-def]
    for i in prange(total.size):
        mean[i] = _quotient(total[i], count[i], per_weight, before[i], blur)
