"""Trimmed mean and median per entry over the clients that held it (Yin et al., 2018).

Extreme values of a minority do not affect the result, whatever their size. All replies of a round
must be there first: they wait on disk and are combined tensor by tensor, a range of entries at a
time, so that memory does not grow with their number. Weights are ignored: a client that claims many
examples would have more than its one vote.
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
"""Values of all replies that are combined at a time: 16 MB of float32."""
KEPT_RUNS = 8
"""Regions of a tensor whose runs are cached while it is combined."""

Held = tuple[Region, int]
"""A region that a client held, and the start of its values in the spool."""
Runs = Callable[[Region], tuple[NDArray[np.int64], int]]


class TrimmedMean:
    """The mean per entry without a share `trim` of its values at each end, rounded down.

    One or two values are averaged, whatever the share.
    """

    def __init__(self, trim: float = 0.2) -> None:
        if not isinstance(trim, (int, float)) or not 0 <= trim < 0.5:
            raise ValueError(f"trim is {trim}: expected 0 or more, below 0.5")
        self.trim = trim
        self._spool = Spool()

    def cut(self, holders: int) -> int:
        """Return the number of an entry's values that are cut at each end."""
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
        """Return the trimmed mean of entries that a client held, elsewhere `previous`, exactly."""
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
            values.sort(axis=1)  # clients' values come first: the rest is infinity
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
        """Enter one client's values for the entries from `low` on."""
        starts, length = runs(region)
        high = low + counts.size
        (hit,) = np.nonzero((starts < high) & (starts > low - length))
        if not hit.size or not length:
            return
        starts = starts[hit[0] : hit[-1] + 1]
        first = hit[0] * length
        if starts.size == 1:  # one run may be far longer than the range
            inside = max(0, low - starts[0])
            first, length = first + inside, min(starts[0] + length, high) - starts[0] - inside
            starts = starts + inside
        last = first + starts.size * length
        read = flat(self._spool.read(offset, int(first), int(last), region.dtype))
        _enter(values, counts, low, starts, length, read)


class Median(TrimmedMean):
    """The median per entry: all values but the middle one, or the middle two, are cut."""

    def __init__(self) -> None:
        super().__init__()

    def cut(self, holders: int) -> int:
        """Return the number of an entry's values that are cut at each end."""
        return max(0, holders - 1) // 2


@njit(cache=True)
def _enter(values, counts, low, starts, length, read):  # type: ignore[no-untyped-def]
    """Enter each run's part of the range as the next client's values."""
    high = low + counts.size
    for run in range(starts.size):
        start = starts[run]
        for at in range(max(start, low), min(start + length, high)):
            entry = at - low
            values[entry, counts[entry]] = read[run * length + at - start]
            counts[entry] += 1


@njit(cache=True)
def _means(values, counts, cuts, state):  # type: ignore[no-untyped-def]
    """Set each entry that a client held to the mean of its remaining sorted values.

    The mean is taken as the lowest value plus a mean difference, so that equal values are their own
    mean, and zeros of either sign the same one.
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
        if mean != state[entry]:  # equal zeros keep their sign
            state[entry] = mean
