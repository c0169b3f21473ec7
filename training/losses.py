"""What a client minimises: functions of the logits of each exit held, and the labels.

A new objective is one more registered function. Its keyword-only parameters are its settings,
which come by name from the config; one called `present` is given the classes that the client has,
one called `round` the number of the round. Settings have the type of their default; what else they
must be, the objective's `check` says.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Objective = Callable[[list[Tensor], Tensor], Tensor]

Check = Callable[[Mapping[str, Any]], None]
"""Raises `ValueError` for settings, of the right types, that the objective cannot have."""

_OBJECTIVES: dict[str, Callable[..., Tensor]] = {}
_CHECKS: dict[str, Check] = {}


def register(
    name: str, check: Check = lambda settings: None
) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Offer a function as an objective under a name."""

    def add(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        if name in _OBJECTIVES:
            raise ValueError(f"an objective named {name!r} is registered already")
        _OBJECTIVES[name], _CHECKS[name] = function, check
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


def _check_distillation(settings: Mapping[str, Any]) -> None:
    beta, temperature = settings.get("beta", 0.0), settings.get("temperature", 1.0)
    if not 0 <= beta < math.inf:
        raise ValueError(f"beta is {beta}: expected a finite number, 0 or more")
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature is {temperature}: expected a finite number above 0")
    normalise = settings.get("normalise", "unit")
    if normalise not in ("unit", "printed"):
        raise ValueError(f"unknown normalise {normalise!r}; choose from unit, printed")


@register("self-distillation", check=_check_distillation)
def self_distillation(
    logits: list[Tensor],
    labels: Tensor,
    *,
    round: int,
    beta: float = 0.1,
    temperature: float = 3.0,
    normalise: str = "unit",
    detach_teacher: bool = True,
    start: int = 1,
) -> Tensor:
    """Eq. (5) of ScaleFL: exit i of l learns from the labels and, by `beta`, from the last exit.

    The weights i are divided by their sum, so that one exit is plain cross-entropy; the printed
    formula's (`normalise="printed"`) add up to a half. Distillation begins in round `start`.
    """
    teacher = logits[-1].detach() if detach_teacher else logits[-1]
    beta = beta if round >= start else 0.0
    total = torch.zeros((), device=labels.device)
    for number, student in enumerate(logits, 1):
        loss = F.cross_entropy(student, labels)
        if beta and number < len(logits):  # the last exit has nothing to learn from itself
            loss = loss + beta * kl_divergence(student, teacher, temperature)
        total = total + number * loss
    share = 2 if normalise == "unit" else 1
    return total * share / (len(logits) * (len(logits) + 1))


def kl_divergence(student: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """KL(teacher || student) of softened answers, times T^2: summed over classes, batch mean."""
    targets = F.log_softmax(teacher / temperature, dim=1)
    answers = F.log_softmax(student / temperature, dim=1)
    each = (targets.exp() * (targets - answers)).sum(1)
    return each.mean() * temperature**2


def check_settings(name: str, settings: Mapping[str, Any]) -> None:
    """Raise `ValueError` unless there is such an objective and it takes these settings."""
    if name not in _OBJECTIVES:
        raise ValueError(f"unknown objective {name!r}; choose from {', '.join(names())}")
    taken = _settings_of(name)
    for setting, value in settings.items():
        if setting not in taken:
            choices = ", ".join(sorted(taken)) or "none"
            raise ValueError(f"unknown setting {setting!r} of {name}; choose from {choices}")
        kind = type(taken[setting])
        if kind in (int, float) and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise ValueError(f"{setting} of {name} is {value!r}: expected a number")
        if kind is bool and not isinstance(value, bool):
            raise ValueError(f"{setting} of {name} is {value!r}: expected true or false")
    for setting, default in taken.items():
        if default is inspect.Parameter.empty and setting not in settings:
            raise ValueError(f"objective {name} needs the setting {setting!r}")
    _CHECKS[name](settings)


def objective(
    name: str, labels: Tensor, num_classes: int, round: int = 1, **settings: Any
) -> Objective:
    """The named objective for a client with these labels, in a round."""
    check_settings(name, settings)
    given = {"present": present_classes(labels, num_classes), "round": round}
    parameters = inspect.signature(_OBJECTIVES[name]).parameters
    known = {key: value for key, value in given.items() if key in parameters}
    return partial(_OBJECTIVES[name], **settings, **known)


def _settings_of(name: str) -> dict[str, Any]:
    """The settings that an objective takes from the config, with their defaults."""
    return {
        parameter.name: parameter.default
        for parameter in inspect.signature(_OBJECTIVES[name]).parameters.values()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
        and parameter.name not in ("present", "round")
    }


def present_classes(labels: Tensor, num_classes: int) -> Tensor:
    """For each class, whether any of the labels is of it."""
    return torch.bincount(labels, minlength=num_classes) > 0
