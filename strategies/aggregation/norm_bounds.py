"""Bounds on the norm of a whole update: a larger update is refused, or shortened to the bound.

Both kinds wrap another aggregator. The norm (L2) is that of all parameters of the slice together,
banks included. Running statistics do not count: they are in units of activations, not of weights,
and jump in the first round of any honest client.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from torch import Tensor

from models.slicing import Region, State, is_running_statistic
from strategies.aggregation.aggregators import Aggregator
from strategies.aggregation.exact_sums import flat, measure
from strategies.aggregation.nested_mean import NestedMean
from strategies.aggregation.spool import Spool
from strategies.aggregation.update import RefusedUpdateError, Update

FEW = 3
"""Replies of a level below which its median is unreliable: one of two may be an attacker's."""


class Inner(Aggregator, Protocol):
    """An aggregator that can be wrapped."""

    def check(self, update: Update) -> None:
        """Raise `RefusedUpdateError` where `add` would, and change nothing."""


@dataclass(frozen=True)
class Norms:
    """L2 norms of an update: of the change of its parameters, and of the parameters before."""

    change: float
    slice: float

    @classmethod
    def of(cls, update: Update) -> Norms:
        """Measure an update of the right form against its part of the state it started from."""
        change = size = 0.0
        for name, region in update.map.regions.items():
            if region.dtype.is_floating_point and not is_running_statistic(name):
                before = flat(update.start[region.source].contiguous())
                moved, was = measure(before, *region.runs, flat(update.state[name]))
                change, size = change + moved[1], size + was[1]
        return cls(math.sqrt(change), math.sqrt(size))


class Bound:
    """The largest norm of an update: `times` that of its slice, or the level's in `bounds`."""

    def __init__(self, times: float, bounds: Sequence[float] | None) -> None:
        if not _positive(times):
            raise ValueError(f"times is {times}: expected a number above 0")
        if bounds is not None and not (
            isinstance(bounds, (list, tuple)) and bounds and all(map(_positive, bounds))
        ):
            raise ValueError(f"bounds are {bounds}: expected numbers above 0, or null")
        self.times, self.bounds = times, bounds

    def of(self, update: Update, norms: Norms) -> float:
        """Return the bound of an update with these norms."""
        return self.bounds[update.level - 1] if self.bounds else self.times * norms.slice


class NormBound:
    """Refuses updates whose norm is above the bound of their level."""

    def __init__(
        self,
        times: float = 1.0,
        bounds: Sequence[float] | None = None,
        inner: Inner | None = None,
    ) -> None:
        self.bound, self.inner = Bound(times, bounds), inner or NestedMean()

    def check(self, update: Update) -> None:
        """Raise `RefusedUpdateError` for an update above the bound, or one that `inner` refuses."""
        self._check_norm(update)
        self.inner.check(update)

    def add(self, update: Update) -> None:
        """Fold in one client's update, or raise `RefusedUpdateError` and change nothing."""
        self._check_norm(update)
        self.inner.add(update)

    def result(self, previous: State) -> dict[str, Tensor]:
        """Return the inner aggregator's result for the updates within the bound."""
        return self.inner.result(previous)

    def _check_norm(self, update: Update) -> None:
        update.check_form()
        norms = Norms.of(update)
        bound = self.bound.of(update, norms)
        if norms.change > bound:
            raise RefusedUpdateError(
                "norm-bound",
                f"the update's norm is {norms.change:g}, above the bound of level {update.level} "
                f"({bound:g})",
            )


def clipped(
    times: float = 1.0,
    of: Literal["slice", "median"] = "slice",
    bounds: Sequence[float] | None = None,
    inner: Inner | None = None,
) -> Inner:
    """Return an aggregator that shortens updates to a bound.

    The bound is `times` the norm of the slice that was sent, `times` the median of the norms in
    this round, or the level's entry in `bounds`.
    """
    if of not in ("slice", "median"):
        raise ValueError(f"of is {of}: expected slice or median")
    if of == "median" and bounds:
        raise ValueError(f"bounds are {list(bounds)}: expected null beside of median")
    bound, inner = Bound(times, bounds), inner or NestedMean()
    return Clipped(bound, inner) if of == "slice" else ClippedToMedian(times, inner)


class Clipped:
    """Shortens updates whose norm is above the bound of their level."""

    def __init__(self, bound: Bound, inner: Inner) -> None:
        self.bound, self.inner = bound, inner

    def check(self, update: Update) -> None:
        """Raise `RefusedUpdateError` if the inner aggregator refuses the shortened update."""
        self.inner.check(self._shortened(update))

    def add(self, update: Update) -> None:
        """Fold in one client's update, or raise `RefusedUpdateError` and change nothing."""
        self.inner.add(self._shortened(update))

    def result(self, previous: State) -> dict[str, Tensor]:
        """Return the inner aggregator's result for the shortened updates."""
        return self.inner.result(previous)

    def _shortened(self, update: Update) -> Update:
        update.check_form()
        norms = Norms.of(update)
        return shortened(update, norms, self.bound.of(update, norms))


class ClippedToMedian:
    """Shortens updates to `times` the median norm of the updates of their level in this round.

    A level with fewer than three replies is compared with all levels, by norms relative to that of
    the slice. With an even number of replies the median is the lower of the middle two: if half of
    the replies are attackers', so is the upper one. The median needs all replies of a round: they
    wait on disk.
    """

    def __init__(self, times: float, inner: Inner) -> None:
        self.times, self.inner = times, inner
        self._spool = Spool()
        self._norms: list[Norms] = []

    def check(self, update: Update) -> None:
        """Raise `RefusedUpdateError` for an update that the inner aggregator would refuse."""
        self.inner.check(update)

    def add(self, update: Update) -> None:
        """Keep one client's update, or raise `RefusedUpdateError` and change nothing."""
        self.check(update)
        norms = Norms.of(update)
        self._spool.add(update)
        self._norms.append(norms)

    def result(self, previous: State) -> dict[str, Tensor]:
        """Return the inner aggregator's result for the shortened updates."""
        self._fold()
        return self.inner.result(previous)

    def _fold(self) -> None:
        """Pass the updates on, now that the medians are known."""
        medians = self._medians()
        relative = [norms.change / norms.slice for norms in self._norms if norms.slice]
        overall = statistics.median_low(relative) if relative else 0.0
        for update, norms in zip(self._spool.updates(), self._norms, strict=True):
            median = medians.get(update.level, overall * norms.slice)
            self.inner.add(shortened(update, norms, self.times * median))
        self._spool, self._norms = Spool(), []

    def _medians(self) -> dict[int, float]:
        """Return the median norm of each level that has enough replies for one."""
        found: dict[int, list[float]] = defaultdict(list)
        for spooled, norms in zip(self._spool.kept, self._norms, strict=True):
            found[spooled.update.level].append(norms.change)
        return {
            level: statistics.median_low(own) for level, own in found.items() if len(own) >= FEW
        }


def _positive(value: object) -> bool:
    return isinstance(value, (int, float)) and 0 < value < math.inf


def shortened(update: Update, norms: Norms, bound: float) -> Update:
    """Return an update moved back towards its start if its norm is above the bound.

    Running statistics move back by the same share; integers stay.
    """
    if not norms.change > bound:  # also false for a norm of NaN
        return update
    share = bound / norms.change
    state = {
        name: _between(update.start[region.source], region, update.state[name], share)
        for name, region in update.map.regions.items()
    }
    return replace(update, state=state)


def _between(start: Tensor, region: Region, tensor: Tensor, share: float) -> Tensor:
    """Return the point at a share of the way; a value that was not finite starts at 0."""
    if not region.dtype.is_floating_point:
        return tensor
    before = region.of(start).to(tensor.device).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
    return before.lerp_(tensor, share)
