"""The whole keys of a configuration, such as train.lr."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

COPY = re.compile(r"\$\{([\w.]+)\}")


def values_by_key(config: DictConfig) -> dict[str, Any]:
    """Return each value under its whole key; a copy of another key's value is that key in ${}."""
    values: Any = OmegaConf.to_container(config, resolve=False)
    return dict(_flat(values))


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def copies(config: DictConfig) -> dict[str, str]:
    """Return the keys whose values are copies of another key's, and that key."""
    found = {key: COPY.fullmatch(str(value)) for key, value in values_by_key(config).items()}
    return {key: match[1] for key, match in found.items() if match}


def keys_by_name(config: DictConfig) -> dict[str, str]:
    """Return each key under its last name, the first one that has it; copies are left out."""
    keys = [key for key in values_by_key(config) if key not in copies(config)]
    return {key.rpartition(".")[2]: key for key in sorted(keys, key=_depth, reverse=True)}


def _depth(key: str) -> int:
    return key.count(".")
