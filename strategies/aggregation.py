"""The nested mean: each entry of the global state is averaged over the clients that held it.

ScaleFL's Algorithm 3 and NeFL's NeFedAvg. Replies are folded one at a time into running sums and
can then be dropped. The sums are integers, in steps of 2^-40: integer addition is exact, so the
order of the replies cannot change a bit of the result, and a bad reply can be taken out again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from models.slicing import Region, SliceMap, State
from strategies.exact_sums import CAPACITY, Sums, add_tensor, add_weight, empty_sums, quotient

WEIGHT_BITS = 30
"""Weights are counted in steps of 2^-30 of the unit."""
FLOAT_BITS, INTEGER_BITS = 40, 10
"""A value of weight 1 is summed in steps of 2^-40; of integer tensors, in steps of 2^-10."""
MAPS_BEFORE_COUNTING = 8
"""Slice maps whose weights are kept aside before they are counted entry by entry."""


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
            raise RefusedStateError(
                "weight",
                f"weight {weight} is not within 2^-10 to 2^20 of the unit {self.unit}; "
                "give NestedMean a typical weight as its unit",
            )
        return round(relative * (1 << WEIGHT_BITS))

    def _take_back(
        self, names: Iterable[str], state: State, slice_map: SliceMap, steps: int
    ) -> None:
        for name in names:
            region = slice_map.regions[name]
            self._add(region, state[name], -_scale(region.dtype, steps))

    def _add(self, region: Region, tensor: Tensor, scale: float) -> float:
        if region.source not in self._totals:
            self._totals[region.source] = empty_sums(region)
        return add_tensor(self._totals[region.source], region, tensor, scale)

    def _count(self) -> None:
        """Count the weights kept aside into their entries."""
        for slice_map, steps in self._uncounted.items():
            for region in slice_map.regions.values():
                if region.source not in self._counts:
                    self._counts[region.source] = empty_sums(region)
                add_weight(self._counts[region.source], region, steps)
        self._uncounted = {}

    def _mean(self, name: str, previous: Tensor) -> Tensor:
        total, count = self._totals[name], self._counts[name]
        if total.size != previous.numel():
            raise ValueError(f"{name}: {total.size} sums, but {previous.numel()} previous values")
        per_weight = _scale(previous.dtype, 1)
        blur = 0.75 / (per_weight * self._lightest)  # half a step each, and room for rounding
        result = quotient(total, count, per_weight, previous, blur)
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
