"""Per entry the middle of those who held it: the trimmed mean, and the median (Yin et al., 2018).

Extreme values of a minority have no part in the result, whatever they are. All replies of a round
are needed for that: they wait on disk, and are combined tensor by tensor, a range of entries at a
time, so that memory does not grow with their number. Weights are not counted: a client that claims
many examples would have more than its one say.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from models.slicing import Region, State
from strategies.aggregation.exact_sums import flat
from strategies.aggregation.nested_mean import check_values
from strategies.aggregation.spool import Spool
from strategies.aggregation.update import Update

VALUES_AT_A_TIME = 1 << 22
"""Of all replies together: 16 MB of float32."""
KEPT_RUNS = 8
"""Regions of a tensor whose runs are remembered while it is combined."""

Held = tuple[Region, int]
"""A region that some client held, and where its values begin in the spool."""
Runs = Callable[[Region], tuple[NDArray[np.int64], int]]


class TrimmedMean:
    """The mean per entry without the `trim` share of the holders at each end, rounded down.

    One holder, or two, are averaged whatever the share.
    """

    def __init__(self, trim: float = 0.2) -> None:
        if not isinstance(trim, (int, float)) or not 0 <= trim < 0.5:
            raise ValueError(f"trim is {trim}: expected 0 or more, below 0.5")
        self.trim = trim
        self._spool = Spool()

    def cut(self, holders: int) -> int:
        """Return how many of an entry's holders are left out at each end."""
        return math.floor(self.trim * holders + 1e-9)  # 0.29 * 100 is a little less than 29

    def check(self, update: Update) -> None:
        """Raise `RefusedUpdateError` for an update that cannot be used."""
        update.check_form()
        for name, tensor in update.state.items():
            check_values(name, tensor)

    def add(self, update: Update) -> None:
        """Keep one client's update, or raise `RefusedUpdateError` and change nothing."""
        self.check(update)
        self._spool.add(update)

    def result(self, previous: State) -> dict[str, Tensor]:
        """Return the trimmed mean, where anyone held an entry; elsewhere `previous`, exactly."""
        held: dict[str, list[Held]] = defaultdict(list)
        for spooled in self._spool.kept:
            for name, region in spooled.update.map.regions.items():
                held[region.source].append((region, spooled.offsets[name]))
        unknown = sorted(held.keys() - previous.keys())
        if unknown:
            raise ValueError(f"the previous state lacks {unknown}, which clients held")
        return {
            name: self._combined(tensor, held[name]) if name in held else tensor
            for name, tensor in previous.items()
        }

    def _combined(self, previous: Tensor, held: Sequence[Held]) -> Tensor:
        state = flat(previous.contiguous()).copy()
        if any(math.prod(region.full) != state.size for region, _ in held):
            raise ValueError(f"{held[0][0].source}: {state.size} previous values, but others held")
        cuts = np.array([self.cut(holders) for holders in range(len(held) + 1)])
        runs: Runs = lru_cache(maxsize=KEPT_RUNS)(lambda region: replace(region).runs)
        step = max(1, VALUES_AT_A_TIME // len(held))
        for low in range(0, state.size, step):
            part = state[low : low + step]
            values = np.full((part.size, len(held)), np.inf, state.dtype)
            counts = np.zeros(part.size, np.int64)
            for region, offset in held:
                self._read(region, offset, runs, low, values, counts)
            values.sort(axis=1)  # those of holders first: there is nothing above infinity
            _means(values, counts, cuts, part)
        result = torch.from_numpy(state).view(previous.shape)
        result = result if previous.dtype.is_floating_point else result.round()
        return result.to(previous.device, previous.dtype)

    def _read(
        self,
        region: Region,
        offset: int,
        runs: Runs,
        low: int,
        values: NDArray[np.floating[Any]],
        counts: NDArray[np.int64],
    ) -> None:
        """Enter the values of one client for the entries from `low` on."""
        starts, length = runs(region)
        high = low + counts.size
        (hit,) = np.nonzero((starts < high) & (starts > low - length))
        if not hit.size or not length:
            return
        starts = starts[hit[0] : hit[-1] + 1]
        first = hit[0] * length
        if starts.size == 1:  # it may be far longer than what is asked for
            inside = max(0, low - starts[0])
            first, length = first + inside, min(starts[0] + length, high) - starts[0] - inside
            starts = starts + inside
        last = first + starts.size * length
        read = flat(self._spool.read(offset, int(first), int(last), region.dtype))
        _enter(values, counts, low, starts, length, read)


class Median(TrimmedMean):
    """The median per entry: all but the middle one of its holders, or the middle two, are cut."""

    def __init__(self) -> None:
        super().__init__()

    def cut(self, holders: int) -> int:
        """Return how many of an entry's holders are left out at each end."""
        return max(0, holders - 1) // 2


@njit(cache=True)
def _enter(values, counts, low, starts, length, read):  # type: ignore[no-untyped-def]
    """Enter each run's part of the range as the next holder's values."""
    high = low + counts.size
    for run in range(starts.size):
        start = starts[run]
        for at in range(max(start, low), min(start + length, high)):
            entry = at - low
            values[entry, counts[entry]] = read[run * length + at - start]
            counts[entry] += 1


@njit(cache=True)
def _means(values, counts, cuts, state):  # type: ignore[no-untyped-def]
    """Set each entry that was held to the mean of what is left of its sorted values.

    It is counted from the lowest of them, so that equal values are their own mean, and zeros of
    either sign the same one.
    """
    for entry in range(counts.size):
        count = counts[entry]
        if count == 0:
            continue
        cut = cuts[count]
        least, most = np.float64(values[entry, cut]), np.float64(values[entry, count - 1 - cut])
        above = 0.0
        for holder in range(cut + 1, count - cut):
            above += values[entry, holder] - least
        mean = min(least + above / (count - 2 * cut), most)
        if mean != state[entry]:  # which keeps the sign of a zero, too
            state[entry] = mean
