"""A narrower network that trains parts of a wider one's weights in place (FjORD)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from torch import Tensor, nn
from torch.func import functional_call

from models.loading import mould, unsaved_buffers
from models.slicing import Region, Slice, State, is_running_statistic, slice_map
from models.task import Task


@dataclass(frozen=True, eq=False)
class NarrowNetwork:
    """A network of a nested width; its tensors are views of the wider network's, not copies."""

    module: nn.Module
    """The network of that width, without memory of its own."""
    buffers: Mapping[str, Tensor]
    """The wider network's statistics of this width, and buffers that no state holds."""
    regions: Mapping[str, Region]
    parameters: Mapping[str, nn.Parameter]
    """The parameters of the wider network."""

    @classmethod
    def of(cls, net: nn.Module, task: Task, slice: Slice, number: int) -> NarrowNetwork:
        """Return the network of nested width `number` of a slice's network."""
        module = mould(task, replace(slice, width=slice.nested[number - 1], nested=()))
        where = slice_map(net, module, bank_of=_statistics_apart).regions
        parameters = dict(net.named_parameters())
        held = {name: where[name] for name, _ in module.named_parameters()}
        device = next(iter(parameters.values())).device
        loose = {name: buffer.to(device) for name, buffer in unsaved_buffers(module).items()}
        return cls(
            module,
            {**loose, **_buffers(module, net.state_dict(keep_vars=True), number)},
            held,
            parameters,
        )

    @cached_property
    def leaves(self) -> Mapping[str, Tensor]:
        """Views of the parameters with their own gradients: the rest of the weights gets none."""
        return {
            name: region.view_of(self.parameters[name].detach()).requires_grad_()
            for name, region in self.regions.items()
        }

    def __call__(self, inputs: Tensor) -> list[Tensor]:
        """Return the logits; gradients go to `leaves`."""
        return self._run(self.leaves, inputs)

    def within(self, inputs: Tensor) -> list[Tensor]:
        """Return the logits; gradients go to the wider network's parameters."""
        parts = {
            name: region.view_of(self.parameters[name]) for name, region in self.regions.items()
        }
        return self._run(parts, inputs)

    def _run(self, parameters: Mapping[str, Tensor], inputs: Tensor) -> list[Tensor]:
        logits: list[Tensor] = functional_call(
            self.module, {**parameters, **self.buffers}, (inputs,)
        )
        return logits


def _statistics_apart(name: str) -> str | None:
    return "own" if is_running_statistic(name) else None


def _buffers(module: nn.Module, state: State, number: int) -> dict[str, Tensor]:
    """Return the buffers of a narrower network: its own statistics, others from the wider one."""
    found = {}
    for name in module.state_dict().keys() - dict(module.named_parameters()).keys():
        holder, _, tensor = name.rpartition(".")
        own = f"{holder}.width{number}.{tensor}" if is_running_statistic(name) else name
        found[name] = state[own]
    return found
