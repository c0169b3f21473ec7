"""Strategies by name."""

from __future__ import annotations

from strategies.base import NestedStrategy
from strategies.methods.decoupled import Decoupled
from strategies.methods.fedavg import FedAvg
from strategies.methods.heterofl import HeteroFL
from strategies.methods.scalefl import ScaleFL

STRATEGIES: dict[str, type[NestedStrategy]] = {
    "decoupled": Decoupled,
    "fedavg": FedAvg,
    "heterofl": HeteroFL,
    "scalefl": ScaleFL,
}


def strategy(name: str) -> type[NestedStrategy]:
    if name not in STRATEGIES:
        raise ValueError(f"unknown strategy {name!r}; choose from {', '.join(STRATEGIES)}")
    return STRATEGIES[name]
