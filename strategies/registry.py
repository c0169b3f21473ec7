"""The methods by name. One more is a file in strategies/methods, a line here, and its YAML."""

from __future__ import annotations

from strategies.base import NestedStrategy
from strategies.methods.decoupled import Decoupled
from strategies.methods.fedavg import FedAvg
from strategies.methods.heterofl import HeteroFL
from strategies.methods.scalefl import ScaleFL

METHODS: dict[str, type[NestedStrategy]] = {
    "decoupled": Decoupled,
    "fedavg": FedAvg,
    "heterofl": HeteroFL,
    "scalefl": ScaleFL,
}


def method(name: str) -> type[NestedStrategy]:
    """Return the method of a name, or raise `ValueError` with the choices."""
    if name not in METHODS:
        raise ValueError(f"unknown strategy {name!r}; choose from {', '.join(METHODS)}")
    return METHODS[name]
