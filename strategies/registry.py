"""The methods by name. One more is a file in strategies/methods, a line here, and its YAML."""

from __future__ import annotations

from pkgutil import resolve_name

from strategies.base import NestedStrategy

METHODS = {
    "decoupled": "strategies.methods.decoupled:Decoupled",
    "depthfl": "strategies.methods.depthfl:DepthFL",
    "fedavg": "strategies.methods.fedavg:FedAvg",
    "feddf": "strategies.methods.feddf:FedDF",
    "fedfa": "strategies.methods.fedfa:FedFA",
    "fjord": "strategies.methods.fjord:FjORD",
    "flexifed": "strategies.methods.flexifed:FlexiFed",
    "heterofl": "strategies.methods.heterofl:HeteroFL",
    "nefl": "strategies.methods.nefl:NeFL",
    "scalefl": "strategies.methods.scalefl:ScaleFL",
    "serving_rate": "strategies.methods.serving_rate:ServingRate",
}
"""Where each is; it is imported when it is used."""


def method(name: str) -> type[NestedStrategy]:
    """Return the method of a name, or raise `ValueError` with the choices."""
    if name not in METHODS:
        raise ValueError(f"unknown strategy {name!r}; choose from {', '.join(METHODS)}")
    found: type[NestedStrategy] = resolve_name(METHODS[name])
    return found
