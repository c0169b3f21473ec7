"""Builds networks for given weights; tensors outside the state dict are as first constructed.

Such tensors are buffers that are not persistent, such as a transformer's positions, and plain
attributes. A network made on `meta` and given memory later would have arbitrary values in them.
"""

from __future__ import annotations

import copy
from functools import lru_cache

import torch
from torch import Tensor, nn

from models.families import SlicedNetwork
from models.slicing import Slice, State
from models.task import Task

KEPT_MOULDS = 16
"""Slices whose weightless networks are kept for copying: they are small."""


def network_to_load(task: Task, slice: Slice) -> SlicedNetwork:
    """Return the slice on the CPU, with weights still to be loaded; equal in every process.

    Buffers that are drawn at random thus have the same values on server and clients.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return task.build(slice)


def network_of(task: Task, slice: Slice, state: State) -> SlicedNetwork:
    """Return a new network of the slice; its tensors are those of `state`, not copies."""
    net = copy.deepcopy(mould(task, slice))
    net.load_state_dict(state, assign=True)
    return net


def unsaved_buffers(net: nn.Module) -> dict[str, Tensor]:
    """Return the buffers that are not in the network's state dict."""
    saved = net.state_dict().keys()
    buffers = net.named_buffers(remove_duplicate=False)
    return {name: buffer for name, buffer in buffers if name not in saved}


@lru_cache(maxsize=KEPT_MOULDS)
def mould(task: Task, slice: Slice) -> SlicedNetwork:
    """Return a network without its parameters' values: drawing these takes most of the time."""
    net = network_to_load(task, slice)
    for module in net.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            nothing = torch.empty_like(parameter, device="meta")
            setattr(module, name, nn.Parameter(nothing, parameter.requires_grad))
    return net


KEPT_NETWORKS = 8
"""Networks that are kept built: simulated clients of a level use the same one in turn."""


def load_network(task: Task, slice: Slice, state: State) -> SlicedNetwork:
    """Return the slice with a copy of these weights.

    The same task and slice give the same object again, so use one at a time. Nothing of an earlier
    use remains: the whole state is loaded, unsaved buffers are restored, and `fit` makes a new
    optimiser.
    """
    net, unsaved = _built(task, slice)
    _check_state(net, state)
    net.load_state_dict(state)
    for name, buffer in copy.deepcopy(unsaved).items():
        module, _, own_name = name.rpartition(".")
        setattr(net.get_submodule(module), own_name, buffer)
    net.zero_grad(set_to_none=True)
    return net


def form_of(task: Task, slice: Slice) -> State:
    """Return tensors with the slice's names, shapes and dtypes, and any values."""
    net, _ = _built(task, slice)
    return net.state_dict()


@lru_cache(maxsize=KEPT_NETWORKS)
def _built(task: Task, slice: Slice) -> tuple[SlicedNetwork, dict[str, Tensor]]:
    """Return a network, and a copy of the buffers that its state dict does not hold."""
    # Not on `meta`: its first use in a process takes 0.4 s, a ResNet-18 on the CPU 0.12 s.
    net = network_to_load(task, slice)
    return net, copy.deepcopy(unsaved_buffers(net))


def _check_state(net: SlicedNetwork, state: State) -> None:
    expected = net.state_dict()
    for name in sorted(expected.keys() ^ state.keys()):
        whose = "the state received" if name in expected else "the slice"
        raise ValueError(f"{name} is missing in {whose}: server and client differ in the slice")
    for name, tensor in expected.items():
        if tensor.shape != state[name].shape:
            found = tuple(state[name].shape)
            raise ValueError(f"{name} has shape {found}: expected {tuple(tensor.shape)}")
