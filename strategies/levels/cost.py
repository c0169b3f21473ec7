"""Counts a slice's cost on the `meta` device: parameters, MACs and activation memory.

No weights are allocated and no arithmetic is done.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from data.cache import Arrays
from models.slicing import Slice
from models.task import Task
from protocol.train_settings import TrainSettings
from strategies.levels.plan_cache import kept

CostKind = Literal["parameters", "macs", "memory"]
COST_KINDS: tuple[CostKind, ...] = get_args(CostKind)
NORMABLE = 2
"""Smallest batch that batch norm can always take: of one image it may see a single value."""
TRAINING_PASSES = 3
"""MACs of a training step in forward passes: the backward pass takes twice the forward's."""
BYTES = 4
"""Size of a weight in bytes."""
NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)


@dataclass(frozen=True)
class Cost:
    """Cost of a network: parameters, MACs for one input, activation bytes for a batch."""

    parameters: int = 0
    macs: int = 0
    memory: int = 0

    def of(self, kind: str) -> int:
        """Return the cost of one kind, or raise `ValueError` with the kinds."""
        if kind not in COST_KINDS:
            raise ValueError(f"unknown cost {kind!r}; choose from {', '.join(COST_KINDS)}")
        value: int = getattr(self, kind)
        return value


@lru_cache(maxsize=1024)
def cost(task: Task, slice: Slice = Slice(), batch: int = 1) -> Cost:  # noqa: B008  (frozen)
    """Return the cost of a slice with all its exits.

    Memory is the activations that training on a batch keeps.
    """

    def count() -> Arrays:
        counted = _counted(task, slice, batch)
        return {kind: np.array(counted.of(kind)) for kind in COST_KINDS}

    found = kept("cost", task, (slice, batch), count)
    return Cost(**{kind: int(found[kind]) for kind in COST_KINDS})


@lru_cache(maxsize=1024)
def _counted(task: Task, slice: Slice, batch: int) -> Cost:
    net = task.build(slice, device="meta")
    run = max(batch, NORMABLE)
    meter = Meter(net, run)
    with meter.running(*COST_KINDS):
        net(task.input(run, device="meta"))
    found = together([meter.take()])
    return replace(found, memory=found.memory * batch // run)


def price_of(task: Task, slice: Slice, kind: CostKind) -> int:
    """Return one kind of a slice's cost, for searches: parameters are counted without a pass."""
    if kind == "parameters":
        net = task.build(slice, device="meta")
        return sum(parameter.numel() for parameter in net.parameters())
    return _counted(task, slice, 1).of(kind)  # not cached: a search asks for hundreds


def training_memory(cost: Cost, train: TrainSettings) -> int:
    """Return the bytes that training takes: weights, gradients, optimiser state, activations."""
    # AdamW keeps two tensors per weight, SGD with momentum one.
    states = 2 if train.optimizer == "adamw" else int(train.momentum > 0)
    return BYTES * (2 + states) * cost.parameters + cost.memory


@dataclass(frozen=True)
class Section:
    """Cost of running a part of a network."""

    parameters: int
    macs: int
    kept: Mapping[int, int]
    """Bytes of each storage kept for the backward pass, by storage. Sections may share one: an
    exit's head reads the same activations as the layer behind it."""


def together(sections: Iterable[Section]) -> Cost:
    """Return the cost of some sections of a network; shared memory is counted once."""
    parameters, macs = 0, 0
    kept: dict[int, int] = {}
    for section in sections:
        parameters, macs = parameters + section.parameters, macs + section.macs
        kept.update(section.kept)
    return Cost(parameters, macs, sum(kept.values()))


@dataclass(frozen=True)
class PathCosts:
    """Cost up to each of some units, and of the early exit's head after each."""

    trunk: Mapping[int, Section]
    """Sections from the previous unit to each unit; the last one includes the final head."""
    heads: Mapping[int, Section]

    def of(self, exits: Collection[int]) -> Cost:
        """Return the cost of a slice with these exits, of which the last is its own."""
        last = max(exits)
        path = [section for unit, section in self.trunk.items() if unit <= last]
        return together(path + [self.heads[unit] for unit in exits if unit in self.heads])


@lru_cache(maxsize=1024)
def path_costs(task: Task, slice: Slice, kind: CostKind) -> PathCosts:
    """Return the cost of a slice for each of its exits as the last one, from one pass.

    Only `kind` is sure to be counted; memory is for `NORMABLE` images. Norms are slow on `meta` and
    are skipped unless memory is counted: they change no shape and have no MACs.
    """
    if slice.exits is None:
        raise ValueError("a slice without exits: expected those whose costs are asked for")
    net = task.build(slice, device="meta")
    meter = Meter(net, NORMABLE)
    if kind != "memory":
        for module in net.modules():
            if isinstance(module, NORMS):
                module.forward = lambda x: x  # type: ignore[method-assign]
    sections: list[Section] = []

    def take(*_: object) -> None:
        sections.append(meter.take())

    for head in net.exits.values():
        head.register_forward_pre_hook(take)
        head.register_forward_hook(take)
    with meter.running(kind):
        net(task.input(NORMABLE, device="meta"))
    exits = slice.exits
    if exits[-1] == task.units:
        take()  # the final head is not among the early exits
    return PathCosts(
        trunk=dict(zip(exits, sections[::2], strict=True)),
        heads=dict(zip(exits, sections[1::2], strict=False)),
    )


def macs_by_exit(task: Task, slice: Slice) -> list[int]:
    """Return the MACs up to each exit, with the heads that are passed on the way."""

    def count() -> Arrays:
        net = task.build(slice, device="meta")
        meter = Meter(net, NORMABLE)
        with meter.running("macs"):
            walk = net.walk(task.input(NORMABLE, device="meta"))
            return {"macs": np.array(list(accumulate(meter.take().macs for _ in walk)))}

    counted: list[int] = kept("macs", task, slice, count)["macs"].tolist()
    return counted


def cost_by_exit(task: Task, slice: Slice, batch: int) -> list[Cost]:
    """Return the cost up to each exit; the last is the cost of the whole slice."""

    def count() -> Arrays:
        counted = _counted_by_exit(task, slice, batch)
        return {kind: np.array([each.of(kind) for each in counted]) for kind in COST_KINDS}

    found = kept("exits", task, (slice, batch), count)
    rows = zip(*(found[kind].tolist() for kind in COST_KINDS), strict=True)
    return [Cost(*row) for row in rows]


def _counted_by_exit(task: Task, slice: Slice, batch: int) -> list[Cost]:
    """Count the cost up to each exit in one pass, with the heads that are passed on the way."""
    net = task.build(slice, device="meta")
    run = max(batch, NORMABLE)
    meter = Meter(net, run)
    with meter.running(*COST_KINDS):
        sections = [meter.take() for _ in net.walk(task.input(run, device="meta"))]
    found = [together(sections[: number + 1]) for number in range(len(sections))]
    return [replace(each, memory=each.memory * batch // run) for each in found]


class Meter:
    """Counts the cost of a running network, section by section."""

    def __init__(self, net: nn.Module, batch: int) -> None:
        self.batch = batch
        from torch.utils.flop_counter import FlopCounterMode  # takes 0.2 s: not for clients

        self.flops = FlopCounterMode(display=False)
        self.taken_flops = 0
        self.parameters = 0
        self._count_parameters(net)  # the network's own, wherever its walk ends
        self.weights = {tensor.untyped_storage()._cdata for tensor in net.parameters()}
        self.kept: dict[int, int] = {}
        self.alive: list[torch.UntypedStorage] = []  # another storage could get its address
        for module in net.modules():
            if module is not net and any(True for _ in module.parameters(recurse=False)):
                module.register_forward_hook(self._count_parameters)

    def take(self) -> Section:
        """Return the cost of the part that has run since the last call."""
        flops = self.flops.get_total_flops()
        macs = (flops - self.taken_flops) // 2 // self.batch
        section = Section(self.parameters, macs, self.kept)
        self.taken_flops, self.parameters, self.kept = flops, 0, {}
        return section

    @contextmanager
    def running(self, *kinds: CostKind) -> Iterator[None]:
        """Count these kinds of cost while the block runs; parameters are always counted."""
        with (
            torch.set_grad_enabled("memory" in kinds),
            saved_tensors_hooks(self._keep, lambda tensor: tensor),
            self.flops if "macs" in kinds else nullcontext(),
        ):
            yield

    def _count_parameters(self, module: nn.Module, *_: object) -> None:
        self.parameters += sum(p.numel() for p in module.parameters(recurse=False))

    def _keep(self, tensor: Tensor) -> Tensor:
        # Weights are saved for the backward pass, too, but they are no activations.
        storage = tensor.untyped_storage()
        if storage._cdata not in self.weights:
            self.kept[storage._cdata] = storage.nbytes()
            self.alive.append(storage)
        return tensor
