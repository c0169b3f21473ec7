"""Sliced networks for a client, built once a process and loaded anew for each use."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from models.registry import SlicedNetwork, build
from models.slicing import Slice, State

KEPT_NETWORKS = 8
"""A simulated client finds its level's network built by the one before it."""


def load_network(
    model: str,
    num_classes: int,
    in_channels: int,
    slice: Slice,
    state: State,
    options: Mapping[str, Any] | None = None,
) -> SlicedNetwork:
    """The slice with these weights, which are copied.

    The same arguments give the same object again, so hold one at a time. The whole state is
    loaded, and `fit` makes its optimiser anew: nothing of an earlier use remains.
    """
    net = _kept(model, num_classes, in_channels, slice, options)
    _check_state(net, state)
    net.load_state_dict(state)
    net.zero_grad(set_to_none=True)
    return net


def form_of(
    model: str,
    num_classes: int,
    in_channels: int,
    slice: Slice,
    options: Mapping[str, Any] | None = None,
) -> State:
    """Tensors with the names, shapes and dtypes of the slice's; their values mean nothing."""
    return _kept(model, num_classes, in_channels, slice, options).state_dict()


def state_of(net: SlicedNetwork) -> dict[str, Tensor]:
    """The network's tensors as copies on the CPU, which its next use does not change."""
    return {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in net.state_dict().items()
    }


def _kept(
    model: str,
    num_classes: int,
    in_channels: int,
    slice: Slice,
    options: Mapping[str, Any] | None,
) -> SlicedNetwork:
    return _built(model, num_classes, in_channels, slice, tuple(sorted((options or {}).items())))


@lru_cache(maxsize=KEPT_NETWORKS)
def _built(
    model: str,
    num_classes: int,
    in_channels: int,
    slice: Slice,
    options: tuple[tuple[str, Any], ...],
) -> SlicedNetwork:
    # Not on `meta`: its first use in a process takes 0.4 s, a ResNet-18 on the CPU 0.12 s.
    with torch.random.fork_rng(devices=[]):
        return build(model, num_classes, in_channels, slice, **dict(options))


def _check_state(net: SlicedNetwork, state: State) -> None:
    expected = net.state_dict()
    for name in sorted(expected.keys() ^ state.keys()):
        whose = "the state received" if name in expected else "the slice"
        raise ValueError(f"{name} is missing in {whose}: server and client differ in the slice")
    for name, tensor in expected.items():
        if tensor.shape != state[name].shape:
            found = tuple(state[name].shape)
            raise ValueError(f"{name} has shape {found}: expected {tuple(tensor.shape)}")
