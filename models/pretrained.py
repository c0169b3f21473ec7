"""Loads pre-trained weights into a full network: every tensor of the backbone, or an error."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from models.families import SlicedNetwork
from models.slicing import Slice, State, is_running_statistic, is_step_size
from models.task import Task

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
