"""Sliced networks for a client, built once a process and loaded anew for each use."""

from __future__ import annotations

from functools import lru_cache

import torch

from models.registry import SlicedNetwork
from models.slicing import Slice, State
from models.task import Task

KEPT_NETWORKS = 8
"""A simulated client finds its level's network built by the one before it."""


def load_network(task: Task, slice: Slice, state: State) -> SlicedNetwork:
    """The slice with these weights, which are copied.

    The same arguments give the same object again, so hold one at a time. The whole state is
    loaded, and `fit` makes its optimiser anew: nothing of an earlier use remains.
    """
    net = _built(task, slice)
    _check_state(net, state)
    net.load_state_dict(state)
    net.zero_grad(set_to_none=True)
    return net


def form_of(task: Task, slice: Slice) -> State:
    """Tensors with the names, shapes and dtypes of the slice's; their values mean nothing."""
    return _built(task, slice).state_dict()


@lru_cache(maxsize=KEPT_NETWORKS)
def _built(task: Task, slice: Slice) -> SlicedNetwork:
    # Not on `meta`: its first use in a process takes 0.4 s, a ResNet-18 on the CPU 0.12 s.
    with torch.random.fork_rng(devices=[]):
        return task.build(slice)


def _check_state(net: SlicedNetwork, state: State) -> None:
    expected = net.state_dict()
    for name in sorted(expected.keys() ^ state.keys()):
        whose = "the state received" if name in expected else "the slice"
        raise ValueError(f"{name} is missing in {whose}: server and client differ in the slice")
    for name, tensor in expected.items():
        if tensor.shape != state[name].shape:
            found = tuple(state[name].shape)
            raise ValueError(f"{name} has shape {found}: expected {tuple(tensor.shape)}")
