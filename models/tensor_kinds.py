"""Selects tensors of a network by the kind of their layer, or by name."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatch

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from models.slicing import is_step_size

LAYERS: dict[str, type[nn.Module]] = {
    "batch-norm": _BatchNorm,
    "layer-norm": nn.LayerNorm,
    "group-norm": nn.GroupNorm,
}
STEP = "step"
"""The kind of a residual branch's step size, which belongs to no layer."""
KINDS = (*LAYERS, STEP)


def tensors_of(net: nn.Module, rules: Iterable[str]) -> frozenset[str]:
    """Return the names of the tensors that the rules select: kinds, or names such as `fc.*`.

    A kind that the network lacks selects nothing; an unknown name is an error.
    """
    kinds = {name: _kind(net, name) for name in net.state_dict()}
    chosen: set[str] = set()
    for rule in rules:
        found = {name for name, kind in kinds.items() if kind == rule or fnmatch(name, rule)}
        if not found and rule not in KINDS:
            raise ValueError(
                f"no tensor is named {rule!r}: expected a name or a pattern of names such as "
                f"{next(reversed(kinds))!r}, or one of {', '.join(KINDS)}"
            )
        chosen |= found
    return frozenset(chosen)


def _kind(net: nn.Module, tensor: str) -> str | None:
    if is_step_size(tensor):
        return STEP
    holder = net.get_submodule(tensor.rpartition(".")[0])
    return next((kind for kind, layer in LAYERS.items() if isinstance(holder, layer)), None)
