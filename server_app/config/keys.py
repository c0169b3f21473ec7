"""The whole keys of a configuration, such as train.lr."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

A_RUNS_OWN = ("output", "name", "resume", "engine", "run_id", "report", "tracker")
"""Settings on which no result depends."""
COPY = re.compile(r"\$\{([\w.]+)\}")


def values_by_key(config: DictConfig) -> dict[str, Any]:
    """Return each value under its whole key; a copy of another key's value is that key in ${}."""
    values: Any = OmegaConf.to_container(config, resolve=False)
    return flat(values)


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values under their whole keys."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def that_matter(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of whole keys without those on which no result depends."""
    return {key: value for key, value in values.items() if key.split(".")[0] not in A_RUNS_OWN}


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


def lists(value: Any) -> Any:
    """Return a value with its tuples as lists, which YAML and Hydra know."""
    if isinstance(value, Mapping):
        return {key: lists(item) for key, item in value.items()}
    return [lists(item) for item in value] if isinstance(value, (list, tuple)) else value
