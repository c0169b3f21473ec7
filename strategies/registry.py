"""Strategies by name."""

from __future__ import annotations

from strategies.base import NestedStrategy
from strategies.decoupled import Decoupled
from strategies.fedavg import FedAvg
from strategies.heterofl import HeteroFL
from strategies.scalefl import ScaleFL

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
