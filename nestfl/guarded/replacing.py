"""The places in Flower (1.41 and 1.42) where our own code takes over."""

from __future__ import annotations

from types import ModuleType


def replace(module: ModuleType, name: str, value: object) -> None:
    """Replace a module's function; raise if it is missing, since a lock would stay open."""
    if not callable(getattr(module, name, None)):
        raise RuntimeError(
            f"this version of Flower has no {module.__name__}.{name}: nestfl needs flwr>=1.41,<1.43"
        )
    setattr(module, name, value)
