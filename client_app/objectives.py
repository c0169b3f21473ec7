"""What a client minimises: functions of the logits of each exit held, and the labels.

A new objective is one more registered function. Its keyword-only parameters are its settings,
which come by name from the config; one called `present` is given the classes that the client has.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Objective = Callable[[list[Tensor], Tensor], Tensor]

_OBJECTIVES: dict[str, Callable[..., Tensor]] = {}


def register(name: str) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Offer a function as an objective under a name."""

    def add(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        if name in _OBJECTIVES:
            raise ValueError(f"an objective named {name!r} is registered already")
        _OBJECTIVES[name] = function
        return function

    return add


def names() -> list[str]:
    return sorted(_OBJECTIVES)


@register("cross-entropy")
def cross_entropy(logits: list[Tensor], labels: Tensor) -> Tensor:
    """The cross-entropy of the slice's own answer, its last exit."""
    return F.cross_entropy(logits[-1], labels)


@register("masked-cross-entropy")
def masked_cross_entropy(logits: list[Tensor], labels: Tensor, *, present: Tensor) -> Tensor:
    """Cross-entropy with the logits of classes that the client lacks set to 0 (HeteroFL, FedFA).

    Such a class gets no gradient, so a client cannot unlearn what others know of it.
    """
    answer = logits[-1]
    return F.cross_entropy(answer.masked_fill(~present.to(answer.device), 0), labels)


def objective(name: str, labels: Tensor, num_classes: int, **settings: Any) -> Objective:
    """The named objective for a client with these labels."""
    if name not in _OBJECTIVES:
        raise ValueError(f"unknown objective {name!r}; choose from {', '.join(names())}")
    function = _OBJECTIVES[name]
    taken = {
        parameter.name: parameter.default
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    needs_present = taken.pop("present", None) is not None
    for setting in settings:
        if setting not in taken:
            choices = ", ".join(sorted(taken)) or "none"
            raise ValueError(f"unknown setting {setting!r} of {name}; choose from {choices}")
    for setting, default in taken.items():
        if default is inspect.Parameter.empty and setting not in settings:
            raise ValueError(f"objective {name} needs the setting {setting!r}")
    if needs_present:
        settings["present"] = present_classes(labels, num_classes)
    return partial(function, **settings)


def present_classes(labels: Tensor, num_classes: int) -> Tensor:
    """For each class, whether any of the labels is of it."""
    return torch.bincount(labels, minlength=num_classes) > 0
