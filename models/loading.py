"""Networks for given weights; what no state dict holds is as the constructor makes it.

That is buffers which are not persistent, such as a transformer's positions, and plain tensors. A
network that is made on `meta` and given memory afterwards has whatever that memory held before.
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
"""Slices whose networks are made by copying: without their weights they are small."""


def network_to_load(task: Task, slice: Slice) -> SlicedNetwork:
    """Return the slice on the CPU, its weights still to be loaded; the same in every process.

    A buffer that is drawn, rather than computed, so has the same values on server and clients.
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
    """Return a network with all but its parameters: to draw those takes most of the time."""
    net = network_to_load(task, slice)
    for module in net.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            nothing = torch.empty_like(parameter, device="meta")
            setattr(module, name, nn.Parameter(nothing, parameter.requires_grad))
    return net
