"""The places in Flower 1.41 where our own code takes over."""

from __future__ import annotations

from types import ModuleType


def replace(module: ModuleType, name: str, value: object) -> None:
    """Replace a module's function. One that is not there would leave a lock open: that raises."""
    if not callable(getattr(module, name, None)):
        raise RuntimeError(
            f"this version of Flower has no {module.__name__}.{name}: nestfl needs flwr==1.41.0"
        )
    setattr(module, name, value)
