"""Exact sums of slices: integers, added in compiled loops over the runs of a region.

A sum is kept as digits in base 2^30, with a row of int64 for each digit. Ordinary values of weight
1 need one row; a large value, a large weight or a fraction adds rows. So nothing overflows, nothing
is rounded away, and no client's update limits the next one's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numba import njit, prange
from numpy.typing import NDArray
from torch import Tensor

from models.slicing import Region

DIGIT_BITS = 30
BASE, MASK = 2.0**DIGIT_BITS, (1 << DIGIT_BITS) - 1
PARALLEL_FROM = 1 << 17
"""Values in a tensor from which several threads are used. In a simulation clients keep the cores
busy: threads on a smaller tensor would wait for each other longer than one thread takes."""
MAGIC, MAGIC_REACH = 1.5 * 2.0**52, 2.0**50
"""A double of the size of MAGIC has no fraction bits. Adding a number below MAGIC_REACH to it
rounds the number, into the low bits: faster than rounding and converting, with the same result."""
MAGIC_BITS = np.float64(MAGIC).view(np.int64)
QUICK_ADDS = 1 << 11
"""Additions of numbers below MAGIC_REACH that a row takes without passing 2^61."""
TOP_REACH = 2.0**32
"""Largest amount that one number adds to the highest row, so that half a billion of them fit."""

Digits = Mapping[int, int]
"""A positive number in base 2^30: its digits other than 0, by their power of 2^30."""


def digits_of(number: int, lowest: int) -> dict[int, int]:
    """Return the digits of `number * 2^(30 lowest)`."""
    digits, power = {}, lowest
    while number:
        number, digit = number >> DIGIT_BITS, number & MASK
        if digit:
            digits[power] = digit
        power += 1
    return digits


class ExactSums:
    """The sums of one global tensor, entry by entry.

    `rows[i]` counts 2^(30 (lowest + i)) steps; the row of single steps, `rows[-lowest]`, always
    exists.
    """

    def __init__(self, size: int) -> None:
        self.rows: NDArray[np.int64] = np.zeros((1, size), np.int64)
        self.lowest = 0
        self._quick_adds = 0

    @classmethod
    def of(cls, region: Region) -> ExactSums:
        """Return zeros for the global tensor that contains a region."""
        return cls(math.prod(region.full))

    @classmethod
    def restored(cls, rows: Tensor, lowest: Tensor) -> ExactSums:
        """Return the sums that a `state_dict` was made of."""
        sums = cls(0)
        sums.rows, sums.lowest = rows.numpy().copy(), int(lowest)
        sums._carry()  # the number of additions that still fit is not saved
        return sums

    def state_dict(self) -> dict[str, Tensor]:
        """Return the sums as tensors."""
        return {"rows": torch.from_numpy(self.rows).clone(), "lowest": torch.tensor(self.lowest)}

    @property
    def size(self) -> int:
        return int(self.rows.shape[1])

    def add(self, region: Region, tensor: Tensor, scale: float, weight: Digits) -> None:
        """Add `tensor * scale`, rounded to whole steps, times the weight; values must be finite."""
        values = flat(tensor)
        if not values.size:
            return
        reach = peak(tensor) * scale
        parallel = values.size >= PARALLEL_FROM
        # Fast path: the values fit one row, and the weight is exactly 1.
        if weight == {0: 1} and reach <= MAGIC_REACH:
            row = self.rows[-self.lowest]
            _run(_QUICK[parallel], parallel, row, *region.runs, values, scale)
            self._quick_adds += 1
            if self._quick_adds == QUICK_ADDS:
                self._carry()
            return
        # Otherwise each digit of the weight is added on its own, to as many rows as its product
        # needs.
        for power, digit in weight.items():
            top = power + max(0, math.ceil(math.log2(max(1.0, reach * digit / TOP_REACH)) / 30))
            self._make_rows(power, top)
            rows = self.rows[power - self.lowest : top - self.lowest + 1]
            _run(_WIDE[parallel], parallel, rows, *region.runs, values, scale, digit)

    def add_weight(self, region: Region, weight: Digits) -> None:
        """Add one weight to all entries of a region."""
        for power, digit in weight.items():
            self._make_rows(power, power)
            _add_weight(self.rows[power - self.lowest], *region.runs, digit)

    def numbers(self) -> NDArray[np.float64]:
        """Return the sums as doubles; equal sums give equal doubles."""
        numbers: NDArray[np.float64] = self.rows[0].astype(np.float64)
        if len(self.rows) == 1:
            return numbers
        _carry_all(self.rows)
        self._quick_adds = 0
        _join(self.rows, numbers)
        numbers *= BASE**self.lowest
        return numbers

    def _carry(self) -> None:
        """Carry the row of single steps into the next, to make room for more additions."""
        self._make_rows(0, 1)
        row = -self.lowest
        self.rows[row + 1] += self.rows[row] >> DIGIT_BITS
        self.rows[row] &= MASK
        self._quick_adds = 0

    def _make_rows(self, lowest: int, highest: int) -> None:
        low, high = min(lowest, self.lowest), max(highest, self.lowest + len(self.rows) - 1)
        if high - low + 1 > len(self.rows):
            rows = np.zeros((high - low + 1, self.size), np.int64)
            rows[self.lowest - low :][: len(self.rows)] = self.rows
            self.rows, self.lowest = rows, low


def quotient(
    total: ExactSums, count: ExactSums, scale: float, previous: Tensor, tolerance: float
) -> Tensor:
    """Return `total / (count * scale)`, or `previous` where nothing was counted.

    Return `previous`, too, where the quotient is within `tolerance` of it, or double precision
    cannot tell them apart.
    """
    before = previous.detach().cpu().double().contiguous().numpy().reshape(-1)
    mean = np.empty_like(before)
    parallel = mean.size >= PARALLEL_FROM
    sums = total.numbers(), count.numbers()
    _run(_DIVIDE[parallel], parallel, *sums, scale, before, tolerance, mean)
    return torch.from_numpy(mean).view(previous.shape)


def flat(tensor: Tensor) -> NDArray[np.floating[Any]]:
    """Return the values as a flat NumPy array: of float32 as it is, of other types as float64."""
    if tensor.dtype != torch.float32:
        tensor = tensor.double()
    values: NDArray[np.floating[Any]] = tensor.detach().cpu().numpy().reshape(-1)
    return values


def peak(tensor: Tensor) -> float:
    """Return the largest magnitude; NaN if any value is NaN."""
    if not tensor.numel():
        return 0.0
    least, most = torch.aminmax(torch.from_numpy(flat(tensor)))
    return float(torch.maximum(-least, most))


def _run(loop: Callable[..., Any], parallel: bool, *arguments: Any) -> None:
    """Run a loop, and restore torch's thread count: a parallel loop changes it through OpenMP."""
    threads = torch.get_num_threads() if parallel else 0
    loop(*arguments)
    if parallel and torch.get_num_threads() != threads:
        torch.set_num_threads(threads)


@njit(cache=True)
def _add_quick(row, start, values, scale):  # type: ignore[no-untyped-def]
    sums = row[start : start + values.size]
    for i in range(values.size):
        sums[i] += np.float64(values[i] * scale + MAGIC).view(np.int64) - MAGIC_BITS


@njit(cache=True)
def _add_wide(rows, start, values, scale, digit):  # type: ignore[no-untyped-def]
    """Add each value digit by digit, from the lowest; the highest row takes the rest."""
    top = rows.shape[0] - 1
    for i in range(values.size):
        rest, carry = np.rint(values[i] * scale), np.int64(0)
        for row in range(top):
            higher = np.floor(rest / BASE)
            own = np.int64(rest - higher * BASE)  # exact: both are whole numbers of 53 bits
            total = rows[row, start + i] + own * digit + carry
            rows[row, start + i], carry, rest = total & MASK, total >> DIGIT_BITS, higher
        rows[top, start + i] += np.int64(rest) * digit + carry


@njit(cache=True)
def _quick(row, starts, length, values, scale):  # type: ignore[no-untyped-def]
    for run in range(starts.size):
        _add_quick(row, starts[run], values[run * length : (run + 1) * length], scale)


@njit(parallel=True, cache=True)
def _quick_in_parallel(row, starts, length, values, scale):  # type: ignore[no-untyped-def]
    for run in prange(starts.size):
        _add_quick(row, starts[run], values[run * length : (run + 1) * length], scale)


@njit(cache=True)
def _wide(rows, starts, length, values, scale, digit):  # type: ignore[no-untyped-def]
    for run in range(starts.size):
        _add_wide(rows, starts[run], values[run * length : (run + 1) * length], scale, digit)


@njit(parallel=True, cache=True)
def _wide_in_parallel(rows, starts, length, values, scale, digit):  # type: ignore[no-untyped-def]
    for run in prange(starts.size):
        _add_wide(rows, starts[run], values[run * length : (run + 1) * length], scale, digit)


@njit(cache=True)
def _add_weight(row, starts, length, digit):  # type: ignore[no-untyped-def]
    for run in range(starts.size):
        entries = row[starts[run] : starts[run] + length]
        for i in range(length):
            entries[i] += digit


@njit(cache=True)
def _carry_all(rows):  # type: ignore[no-untyped-def]
    """Carry digits up, so that only the highest row has values below 0 or above the base."""
    for row in range(rows.shape[0] - 1):
        low, high = rows[row], rows[row + 1]
        for i in range(low.size):
            high[i] += low[i] >> DIGIT_BITS
            low[i] &= MASK


@njit(cache=True)
def _join(rows, numbers):  # type: ignore[no-untyped-def]
    """Join the digits from the highest one; a negative number is read as its complement."""
    top = rows.shape[0] - 1
    for i in range(numbers.size):
        negative = rows[top, i] < 0
        number = 0.0
        for row in range(top, -1, -1):
            digit = rows[row, i]
            if negative:
                # Two's complement: invert each digit, and add 1 to the lowest.
                digit = (-1 if row == top else MASK) - digit + (row == 0)
            number = number * BASE + digit
        numbers[i] = -number if negative else number


@njit(cache=True)
def _quotient(total, count, scale, before, tolerance):  # type: ignore[no-untyped-def]
    if count > 0:
        mean = total / (count * scale)
        if not abs(mean - before) <= max(tolerance, abs(before) * 2.0**-51):  # before may be NaN
            return mean
    return before


@njit(cache=True)
def _divide(total, count, scale, before, tolerance, mean):  # type: ignore[no-untyped-def]
    for i in range(mean.size):
        mean[i] = _quotient(total[i], count[i], scale, before[i], tolerance)


@njit(parallel=True, cache=True)
def _divide_in_parallel(total, count, scale, before, tolerance, mean):  # type: ignore[no-untyped-def]
    for i in prange(mean.size):
        mean[i] = _quotient(total[i], count[i], scale, before[i], tolerance)


_QUICK = (_quick, _quick_in_parallel)
_WIDE = (_wide, _wide_in_parallel)
_DIVIDE = (_divide, _divide_in_parallel)
"""Each loop, for one thread and for several threads."""


@njit(cache=True)
def measure(before, starts, length, values):  # type: ignore[no-untyped-def]
    """Return the peak and sum of squares of the change, and of the values before it.

    A value that was not finite before counts as 0, so all of the client's value is its change.
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
