"""Builds networks for given weights; tensors outside the state dict are as first constructed.

Such tensors are buffers that are not persistent, such as a transformer's positions, and plain
attributes. A network made on `meta` and given memory later would have arbitrary values in them.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from functools import lru_cache

import torch
from torch import Tensor, nn

from models.families import SlicedNetwork
from models.slicing import Slice, State, is_running_statistic, is_step_size
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


WRAPPER = "module."
"""Prefix that torch's DataParallel adds to all names."""
OLD_NAMES = {
    "LayerNorm.gamma": "LayerNorm.weight",
    "LayerNorm.beta": "LayerNorm.bias",
    "mlp.linear_1": "mlp.0",
    "mlp.linear_2": "mlp.3",
}
"""Former names in the first BERTs, and in torchvision's published ViTs."""


class PretrainedError(ValueError):
    """Weights that do not belong to the network."""


def load_pretrained(task: Task, net: SlicedNetwork, weights: State) -> None:
    """Load these weights into the task's full network; only heads may keep their random values.

    Heads are the early exits and all tensors that depend on the number of classes. The weights may
    hold other tensors only if the network has no use for them: other tasks' heads, statistics its
    norms do not keep. A half-loaded backbone would go unnoticed, because it still learns.
    """
    state = net.state_dict()
    heads = _heads(task, net)
    found: dict[str, Tensor] = {}
    strangers = []
    for name, tensor in weights.items():
        known = _name_in(net, state, name)
        if known in heads and tensor.shape != state[known].shape:
            continue  # other classes
        if known in state:
            found[known] = tensor
        elif not (known.startswith(net.saved_besides) or is_running_statistic(known)):
            strangers.append(name)
    missing = [
        name
        for name in state.keys() - found.keys() - heads
        if not name.endswith("num_batches_tracked")
    ]
    misshapen = [
        f"{name} has shape {tuple(tensor.shape)}, expected {tuple(state[name].shape)}"
        for name, tensor in found.items()
        if tensor.shape != state[name].shape
    ]
    for complaint, names in (
        ("the weights lack", missing),
        ("the weights do not fit:", misshapen),
        (f"{task.model} has no place for", strangers),
    ):
        if names:
            raise PretrainedError(f"{complaint} {_shown(names)}: are they those of {task.model}?")
    net.load_state_dict(found, strict=False)


def _heads(task: Task, net: SlicedNetwork) -> set[str]:
    """Return the tensors that belong to a task rather than to the network, with step sizes."""
    state, plain = net.state_dict(), task.build(Slice(), "meta").state_dict()
    own = {name for name in plain if is_step_size(name)}
    own |= {name for name in plain if name.startswith(net.drawn_anew)}
    return (state.keys() - plain.keys()) | task.class_rows(Slice()) | own


def _name_in(net: SlicedNetwork, state: State, name: str) -> str:
    """Return a tensor's current name, without the prefix of a wrapper."""
    for old, new in OLD_NAMES.items():
        name = name.replace(old, new)
    for wrapper in (WRAPPER, *net.saved_within):
        if name not in state:
            name = name.removeprefix(wrapper)
    return name


def _shown(names: Iterable[str]) -> str:
    first, *others = sorted(names)
    more = f" and {len(others) - 2} more" if len(others) > 2 else ""
    return ", ".join((first, *others[:2])) + more
