"""Checks the global state that a round has come to, before anything is made of it or written."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from models import State
from strategies.federation import FederationError

Form = Mapping[str, tuple[torch.Size, torch.dtype]]
"""The shape and the type of each tensor of a state."""


def form_of(state: State) -> Form:
    """Return the form of a state."""
    return {name: (tensor.shape, tensor.dtype) for name, tensor in state.items()}


def require_state(state: object, form: Form, source: str) -> State:
    """Return a state that a source has made, if it has this form and is finite throughout.

    A checkpoint of any other could not be resumed, or would never recover.
    """
    if not isinstance(state, Mapping):
        raise FederationError(
            f"{source} returned {type(state).__name__}: expected the next global state, tensors "
            "by their names"
        )
    if lost := [name for name in form if name not in state]:
        raise FederationError(
            f"{source} returned no {_named(lost)}: expected all tensors of the state before"
        )
    if new := [str(name) for name in state if name not in form]:
        raise FederationError(
            f"{source} returned {_named(new)}, which the state before has not: what is no tensor "
            "of the network is an attribute of the method, kept by its state_dict"
        )
    for name, tensor in state.items():
        _require_tensor(name, tensor, form, source)
    return dict(state)


def _require_tensor(name: str, tensor: object, form: Form, source: str) -> None:
    shape, dtype = form[name]
    if not isinstance(tensor, Tensor):
        raise FederationError(
            f"{source} returned {name} as {type(tensor).__name__}: expected a tensor"
        )
    if (tensor.shape, tensor.dtype) != (shape, dtype):
        raise FederationError(
            f"{source} returned {name} as {_form(tensor.shape, tensor.dtype)}: expected "
            f"{_form(shape, dtype)}"
        )
    if not (finite := torch.isfinite(tensor)).all():
        raise FederationError(
            f"{source} returned {name} with {int((~finite).sum())} of {tensor.numel()} values that "
            "are NaN or infinite: expected finite ones"
        )


def _named(names: list[str]) -> str:
    more = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{names[0]}{more}"


def _form(shape: torch.Size, dtype: torch.dtype) -> str:
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"
