"""What a slice costs: parameters, MACs and activation memory, counted on the `meta` device.

No weights are allocated and no arithmetic is done.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from models.slicing import Slice
from models.task import Task

CostKind = Literal["parameters", "macs", "memory"]
COST_KINDS: tuple[CostKind, ...] = get_args(CostKind)
NORMABLE = 2
"""Images in a batch that batch norm can always take: of one it may see a single value."""
NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)


@dataclass(frozen=True)
class Cost:
    """What a network takes: parameters, MACs for one input, activation bytes for a batch."""

    parameters: int = 0
    macs: int = 0
    memory: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*(self.of(f.name) + other.of(f.name) for f in fields(Cost)))

    def __sub__(self, other: Cost) -> Cost:
        return Cost(*(self.of(f.name) - other.of(f.name) for f in fields(Cost)))

    def of(self, kind: str) -> int:
        if kind not in COST_KINDS:
            raise ValueError(f"unknown cost {kind!r}; choose from {', '.join(COST_KINDS)}")
        value: int = getattr(self, kind)
        return value


@lru_cache(maxsize=1024)
def cost(task: Task, slice: Slice = Slice(), batch: int = 1) -> Cost:  # noqa: B008  (frozen)
    """What a slice costs with all its exits; memory is what training on a batch keeps."""
    net = task.build(slice, device="meta")
    run = max(batch, NORMABLE)
    meter = Meter(net, run)
    with meter.running(*COST_KINDS):
        net(task.input(run, device="meta"))
    found = meter.read()
    return replace(found, memory=found.memory * batch // run)


@dataclass(frozen=True)
class ExitCost:
    """The cost up to an early exit: of what runs before its head (no other heads), of the head."""

    trunk: Cost
    head: Cost


@lru_cache(maxsize=1024)
def costs_by_depth(
    task: Task, width: float, depths: tuple[int, ...], kind: CostKind
) -> dict[int, ExitCost]:
    """What an exit at each of `depths` costs at a width, from one pass with a head at all of them.

    Only `kind` is sure to be counted, memory for `NORMABLE` images. Norms, slow on `meta`, are
    passed over where it is not memory: they change no shape and have no MACs.
    """
    net = task.build(Slice(width=width, exits=depths), device="meta")
    meter = Meter(net, NORMABLE)
    if kind != "memory":
        for module in net.modules():
            if isinstance(module, NORMS):
                module.forward = lambda x: x  # type: ignore[method-assign]
    readings: list[Cost] = []

    def read(*_: object) -> None:
        readings.append(meter.read())

    for head in net.exits.values():
        head.register_forward_pre_hook(read)
        head.register_forward_hook(read)
    with meter.running(kind):
        net(task.input(NORMABLE, device="meta"))

    found, heads = {}, Cost()
    for unit, before, after in zip(net.exits, readings[::2], readings[1::2], strict=True):
        found[int(unit)] = ExitCost(trunk=before - heads, head=after - before)
        heads += after - before
    if depths[-1] == task.units:
        found[task.units] = ExitCost(trunk=meter.read() - heads, head=Cost())
    return found


def macs_by_exit(task: Task, slice: Slice) -> list[int]:
    """The MACs of stopping at each exit held, with the heads of those before it on the path."""
    net = task.build(slice, device="meta")
    meter = Meter(net, NORMABLE)
    with meter.running("macs"):
        return [meter.read().macs for _ in net.walk(task.input(NORMABLE, device="meta"))]


class Meter:
    """Reads what a network has cost so far, while it runs."""

    def __init__(self, net: nn.Module, batch: int) -> None:
        self.batch = batch
        self.flops = FlopCounterMode(display=False)
        self.parameters = 0
        self.weights = {tensor.untyped_storage()._cdata for tensor in net.parameters()}
        self.kept: dict[int, torch.UntypedStorage] = {}
        for module in net.modules():
            if any(True for _ in module.parameters(recurse=False)):
                module.register_forward_hook(self._count_parameters)

    def read(self) -> Cost:
        macs = self.flops.get_total_flops() // 2 // self.batch
        memory = sum(storage.nbytes() for storage in self.kept.values())
        return Cost(self.parameters, macs, memory)

    @contextmanager
    def running(self, *kinds: CostKind) -> Iterator[None]:
        """Count these kinds (parameters always) while the block runs."""
        with (
            torch.set_grad_enabled("memory" in kinds),
            saved_tensors_hooks(self._keep, lambda tensor: tensor),
            self.flops if "macs" in kinds else nullcontext(),
        ):
            yield

    def _count_parameters(self, module: nn.Module, *_: object) -> None:
        self.parameters += sum(p.numel() for p in module.parameters(recurse=False))

    def _keep(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.weights:
            self.kept[storage._cdata] = storage
        return tensor
