"""Applies an attack to a client's data before its training, and to its reply afterwards.

It acts between data, method and reply, so it works with any method.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from data.examples import Examples
from models.slicing import State
from protocol.attack import Sabotage


def poisoned(data: Examples, sabotage: Sabotage) -> Examples:
    """Return an attacker's examples, with shuffled labels if the attack asks for it."""
    if sabotage.labels is None:
        return data
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(sabotage.labels))
    this: Any = data  # any dataclass of Examples
    shuffled: Examples = replace(this, labels=data.labels[order])
    return shuffled


def amplified(trained: State, sent: Mapping[str, Tensor], sabotage: Sabotage) -> State:
    """Return sent + strength * (trained - sent), statistics included; counters stay as trained.

    At strength 1 this is the trained state, bit for bit. A variance is kept at 0 or above.
    """
    return {name: _amplified(name, each, sent[name], sabotage) for name, each in trained.items()}


def _amplified(name: str, trained: Tensor, sent: Tensor, sabotage: Sabotage) -> Tensor:
    if not trained.is_floating_point():
        return trained
    further = torch.lerp(sent.to(trained.device), trained.detach(), sabotage.strength)
    return further.clamp_(min=0) if name.endswith("running_var") else further
