"""Slices of a network: the same constructor with smaller numbers, on parts of the global tensors.

A sliced network keeps the *names* of the full network's tensors. The name gives the global tensor,
and the two shapes give the part of it. No masks or index tables are written.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

State = Mapping[str, Tensor]
Index = slice | NDArray[np.int64]
"""The kept positions of one axis: a range, or an array where they are not contiguous."""

Rounding = Literal["floor", "ceil"]
WindowKind = Literal[
    "prefix", "upper-right", "lower-left", "lower-right", "middle", "random", "rolling"
]


class SliceError(ValueError):
    """A slice that its network does not have, or a tensor that is not part of the global one."""


@dataclass(frozen=True)
class Slice:
    """A device's part of a network: a share of its channels, some blocks, some exits."""

    width: float | tuple[float, ...] = 1.0
    """Share of the channels: one number, or one per stage."""
    blocks: tuple[tuple[int, ...], ...] | None = None
    """Residual blocks kept, per stage; default (None): all."""
    exits: tuple[int, ...] | None = None
    """Exits held, each named by the unit (block, layer) it follows. The last one is the slice's own
    answer, and nothing behind it exists. Default (None): the network's own final head alone."""
    rounding: Rounding = "floor"
    """Rounding of a share of the channels to a number of channels."""
    nested: tuple[float, ...] = ()
    """Narrower widths that the slice also contains, the smallest first: batch norms keep statistics
    of each (FjORD)."""

    def __post_init__(self) -> None:
        own = self.width if isinstance(self.width, tuple) else (self.width,)
        for share in (*own, *self.nested):
            if not 0 < share <= 1:
                raise SliceError(f"width {share} is not a share: expected 0 < width <= 1")
        if self.rounding not in ("floor", "ceil"):
            raise SliceError(f"unknown rounding {self.rounding!r}; choose floor or ceil")
        if self.exits is not None and (
            not self.exits or list(self.exits) != sorted(set(self.exits))
        ):
            raise SliceError(f"exits {self.exits} are not in ascending order, each once")

    def share(self, stage: int | None = 0) -> float:
        """Return the share of the channels that stage number `stage` keeps.

        None stands for layers of no stage: a single share cuts them too, a share per stage does
        not.
        """
        if isinstance(self.width, tuple):
            return 1.0 if stage is None else self.width[stage]
        return self.width

    def channels(self, full: int, stage: int | None = 0) -> int:
        """Return the number of `full` channels that are kept, at least one."""
        exact = full * self.share(stage)
        # The small terms absorb rounding errors of the product.
        kept = math.floor(exact + 1e-6) if self.rounding == "floor" else math.ceil(exact - 1e-6)
        return max(1, kept)

    def depth(self, units: int) -> int:
        """Return the number of units up to the slice's last exit, out of the network's `units`."""
        return self.exits[-1] if self.exits else units

    def early_exits(self, units: int) -> list[int]:
        """Return the exits held besides the full network's own, which follows all `units`."""
        return [unit for unit in self.exits or () if unit != units]

    def kept_units(self, units: int) -> int:
        """Return the number of a network's `units` that the slice holds."""
        if self.blocks is not None:
            return sum(map(len, self.blocks))
        return self.depth(units)


def check_stages(slice: Slice, blocks: Sequence[int]) -> None:
    """Raise `SliceError` if a network with these numbers of blocks per stage has no such slice."""
    stages = len(blocks)
    if isinstance(slice.width, tuple) and len(slice.width) != stages:
        raise SliceError(f"width {slice.width}: expected one share for each of {stages} stages")
    if slice.blocks is None:
        return
    if len(slice.blocks) != stages:
        raise SliceError(f"blocks {slice.blocks}: expected one tuple for each of {stages} stages")
    for stage, (kept, count) in enumerate(zip(slice.blocks, blocks, strict=True)):
        absent = [block for block in kept if not 0 <= block < count]
        if absent:
            raise SliceError(
                f"stage {stage + 1} has blocks 0 to {count - 1}; blocks {absent} are not there"
            )


@dataclass(frozen=True)
class Window:
    """Chooses the `k` of the `n` positions of an axis that are kept.

    The choice depends on `(n, k, seed)` alone, so all layers on the same axis agree without
    bookkeeping. ScaleFL's two mixed corners are the exception, by their definition (inputs are
    rows, outputs are columns): they cut a layer's inputs and outputs at opposite ends, so their
    networks are other wirings of the same weights, not the full network with channels masked.
    """

    kind: WindowKind = "prefix"
    seed: int = 0
    """Draws a `random` window; moves the `rolling` one (the round's number)."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(WindowKind):
            choices = ", ".join(get_args(WindowKind))
            raise SliceError(f"unknown window {self.kind!r}; choose from {choices}")

    def indices(self, n: int, k: int, axis: int = 0) -> Index:
        """Return the `k` entries of `n` on an axis that are kept, from these numbers alone."""
        if k == n or self.kind == "prefix":
            return slice(0, k)
        if self.kind == "random":
            return _drawn(n, k, self.seed)
        start = {
            "upper-right": n - k if axis == 0 else 0,
            "lower-left": 0 if axis == 0 else n - k,
            "lower-right": n - k,
            "middle": (n - k) // 2,
            "rolling": self.seed % n,
        }[self.kind]
        if start + k <= n:
            return slice(start, start + k)
        return (start + np.arange(k)) % n


@lru_cache(maxsize=4096)
def _drawn(n: int, k: int, seed: int) -> NDArray[np.int64]:
    return np.sort(np.random.default_rng((seed, n, k)).permutation(n)[:k])


PREFIX = Window()


@dataclass(frozen=True, eq=False)
class Region:
    """The place of a slice's tensor in a global one."""

    source: str
    """The global tensor's name: the same name, or the bank's (see `slice_map`)."""
    full: tuple[int, ...]
    axes: tuple[Index, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    banked: bool = False
    """True if it is a bank's own tensor, rather than part of the full network's."""

    def of(self, tensor: Tensor) -> Tensor:
        """Return this part of the global tensor, as a contiguous copy."""
        return self.view_of(tensor).clone(memory_format=torch.contiguous_format)

    def view_of(self, tensor: Tensor) -> Tensor:
        """Return a view of this part of the tensor, or a copy if it is not a single block."""
        for axis, index in enumerate(self.axes):
            if self.shape[axis] == self.full[axis]:
                continue
            if isinstance(index, slice):
                tensor = tensor.narrow(axis, index.start, self.shape[axis])
            else:
                tensor = tensor.index_select(axis, torch.from_numpy(index).to(tensor.device))
        return tensor

    @cached_property
    def runs(self) -> tuple[NDArray[np.int64], int]:
        """The region as runs of equal length in the flat global tensor: their starts and length."""
        length, stride, starts = 1, 1, np.zeros(1, np.int64)
        whole = True  # all axes so far are kept whole: the next range extends the run
        # From the last axis, whose entries are neighbours in memory, to the first.
        for axis in reversed(range(len(self.full))):
            n, index = self.full[axis], self.axes[axis]
            if whole and isinstance(index, slice) and (axis > 0 or len(self.full) == 1):
                length *= index.stop - index.start
                starts = starts + index.start * stride
                whole = index.stop - index.start == n
            else:
                starts = np.add.outer(np.arange(n)[index] * stride, starts).ravel()
                whole = False
            stride *= n
        return starts, length


@dataclass(frozen=True, eq=False)
class SliceMap:
    """The regions of the global state that a slice's tensors are, by name."""

    regions: Mapping[str, Region]


@dataclass(frozen=True)
class Parts:
    """The parts of an axis: their numbers of channels, and the entries of each channel."""

    sizes: tuple[int, ...]
    run: int = 1

    def __str__(self) -> str:
        return f"{self.sizes} in runs of {self.run}" if self.run > 1 else f"{self.sizes}"


def declare_parts(
    module: nn.Module, tensor: str, axis: int, sizes: Sequence[int], run: int = 1
) -> None:
    """Declare that an axis of `module`'s tensor consists of parts, each cut on its own.

    For heads, fused q/k/v and concatenated features. Call it where the layer is built, in the full
    network and in its slices alike, with the sizes of the parts there. Where images were flattened,
    a channel is a `run` of entries, one for each pixel.
    """
    length, parts = getattr(module, tensor).shape[axis], Parts(tuple(sizes), run)
    if sum(sizes) * run != length:
        raise SliceError(f"parts {parts} of {tensor} do not add up to axis {axis}: {length}")
    declared: dict[tuple[str, int], Parts] = module.__dict__.setdefault("axis_parts", {})
    declared[tensor, axis] = parts


def declare_chunks(net: nn.Module, chunks: int, rows_of_others: Collection[str]) -> None:
    """Declare that each axis of all tensors of a Transformer consists of equal chunks.

    Rows of layers whose name contains one of these words are not channels: tokens, classes.
    """
    for name, module in net.named_modules():
        for tensor, values in module.named_parameters(recurse=False):
            for axis, size in enumerate(values.shape):
                if axis > 0 or not set(name.split(".")) & set(rows_of_others):
                    declare_parts(module, tensor, axis, (size // chunks,) * chunks)


def is_running_statistic(name: str) -> bool:
    """Return whether a tensor holds BatchNorm statistics, which belong to one width alone."""
    return name.endswith(("running_mean", "running_var", "num_batches_tracked"))


NESTED = re.compile(r"\.width(\d+)(?=\.\w+$)")
"""Matches the part of a tensor's name that marks a nested width: `bn1.width2.running_mean`."""


def nested_width(name: str) -> int | None:
    """Return the nested width, counted from 1, of a tensor's name; None for the slice's own."""
    found = NESTED.search(name)
    return int(found[1]) if found else None


def without_width(name: str) -> str:
    """Return the name of a nested width's tensor in a network of that width."""
    return NESTED.sub("", name)


def is_step_size(name: str) -> bool:
    """Return whether a tensor is the step size of a residual branch (NeFL)."""
    own = name.rpartition(".")[2]
    return own == "step" or own.endswith("_step")


def slice_map(
    full: nn.Module,
    part: nn.Module,
    window: Window = PREFIX,
    bank_of: Callable[[str], str | None] | None = None,
) -> SliceMap:
    """Find each tensor of `part` in `full`, from names and shapes (both may be on `meta`).

    Tensors for which `bank_of` names a bank are not shared with other slices: they are kept whole
    in the global state under `name@bank`, and those of a nested width under their name in a network
    of that width. Without `bank_of`, batch norm's statistics must be uncut.
    """
    whole, parts = full.state_dict(), _axis_parts(full)
    cut, cut_parts = part.state_dict(), _axis_parts(part)
    regions = {}
    for name, tensor in cut.items():
        shape = tuple(tensor.shape)
        bank = bank_of(name) if bank_of else None
        if bank is not None:
            axes: tuple[Index, ...] = tuple(slice(0, k) for k in shape)
            source = f"{without_width(name)}@{bank}"
            regions[name] = Region(source, shape, axes, shape, tensor.dtype, True)
            continue
        if name not in whole:
            raise SliceError(f"{name} {shape} of the slice is not in the full network")
        outer = tuple(whole[name].shape)
        if len(outer) != len(shape) or any(k > n for n, k in zip(outer, shape, strict=True)):
            raise SliceError(f"{name}: sliced shape {shape} does not fit in full shape {outer}")
        if bank_of is None and outer != shape and is_running_statistic(name):
            raise SliceError(
                f"{name}: {shape} of {outer}: statistics of one width are not part of another's; "
                "give slice_map a bank to keep them per level"
            )
        axes = tuple(
            _cut_axis(name, window, axis, parts.get((name, axis), Parts((n,))),
                      cut_parts.get((name, axis), Parts((k,))))
            for axis, (n, k) in enumerate(zip(outer, shape, strict=True))
        )  # fmt: skip
        regions[name] = Region(name, outer, axes, shape, tensor.dtype)
    return SliceMap(regions)


def _axis_parts(net: nn.Module) -> dict[tuple[str, int], Parts]:
    return {
        (f"{prefix}.{tensor}" if prefix else tensor, axis): parts
        for prefix, module in net.named_modules()
        for (tensor, axis), parts in module.__dict__.get("axis_parts", {}).items()
    }


def _cut_axis(name: str, window: Window, axis: int, full: Parts, part: Parts) -> Index:
    sizes = list(zip(full.sizes, part.sizes, strict=False))
    alike = len(full.sizes) == len(part.sizes) and full.run == part.run
    if not alike or any(k > n for n, k in sizes):
        raise SliceError(f"{name}: axis {axis} has parts {part}, which do not fit in {full}")
    if full == part:
        return slice(0, sum(full.sizes) * full.run)
    if len(sizes) == 1:
        return _in_runs(window.indices(*sizes[0], axis), full.run)
    starts = np.cumsum((0, *full.sizes[:-1]))
    kept = [
        start + np.arange(n)[window.indices(n, k, axis)]
        for start, (n, k) in zip(starts, sizes, strict=True)
    ]
    return _in_runs(np.concatenate(kept), full.run)


def _in_runs(channels: Index, run: int) -> Index:
    """Return the entries of channels, for `run` entries per channel."""
    if isinstance(channels, slice):
        return slice(channels.start * run, channels.stop * run)
    return channels if run == 1 else np.add.outer(channels * run, np.arange(run)).ravel()


def extract(state: State, slice_map: SliceMap) -> dict[str, Tensor]:
    """Return copies of a slice's tensors from the global state."""
    tensors = {}
    for name, region in slice_map.regions.items():
        source = state.get(region.source)
        if source is None or tuple(source.shape) != region.full:
            found = "nothing" if source is None else f"shape {tuple(source.shape)}"
            raise SliceError(f"{region.source}: expected shape {region.full}, found {found}")
        tensors[name] = region.of(source)
    return tensors
