"""The methods by name. A new one is a plugin, or a file in strategies/methods and a line here."""

from __future__ import annotations

from collections.abc import Callable
from pkgutil import resolve_name
from typing import TypeVar

import plugins
from strategies.round import NestedStrategy

Chosen = TypeVar("Chosen", bound=type[NestedStrategy])

METHODS = {
    "decoupled": "strategies.methods.decoupled:Decoupled",
    "depthfl": "strategies.methods.depthfl:DepthFL",
    "fedavg": "strategies.methods.fedavg:FedAvg",
    "feddf": "strategies.methods.feddf.feddf:FedDF",
    "fedfa": "strategies.methods.fedfa.fedfa:FedFA",
    "fjord": "strategies.methods.fjord.fjord:FjORD",
    "flexifed": "strategies.methods.flexifed:FlexiFed",
    "heterofl": "strategies.methods.heterofl:HeteroFL",
    "nefl": "strategies.methods.nefl:NeFL",
    "scalefl": "strategies.methods.scalefl:ScaleFL",
    "serving_rate": "strategies.methods.serving_rate.serving_rate:ServingRate",
}
"""Module and class of each method; imported on first use."""


def register_method(name: str) -> Callable[[Chosen], Chosen]:
    """Register a method under a name: `strategy=NAME` runs it with its settings' defaults."""

    def add(method: Chosen) -> Chosen:
        if name in METHODS:
            raise ValueError(f"a strategy named {name!r} is there already: choose another name")
        METHODS[name] = f"{method.__module__}:{method.__qualname__}"
        plugins.offer("strategy", name, lambda: METHODS.pop(name))
        return method

    return add


def method(name: str) -> type[NestedStrategy]:
    """Return the method with this name, or raise `ValueError` with the choices."""
    plugins.search(lambda: name in METHODS)
    if name not in METHODS:
        raise ValueError(f"unknown strategy {name!r}; choose from {', '.join(METHODS)}")
    found: type[NestedStrategy] = resolve_name(METHODS[name])
    return found
