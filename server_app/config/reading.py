"""The configuration of a run as it was saved, maybe by an earlier version."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from protocol.documents import DocumentError, read_yaml
from server_app.config.typed import ConfigError

Named = dict[str, Any]


NEEDED = ("model", "dataset", "fleet", "strategy")
"""Parts that every run has; for others that an older version lacks, defaults stand in."""


class Saved(TypedDict, total=False):
    """The parts of a configuration."""

    model: Named
    dataset: Named
    fleet: Named
    strategy: Named
    train: Named
    aggregation: Named
    evaluate: Named
    checkpoint: Named
    max_update: Named
    tracker: Named


OLD_OBJECTIVES = {
    "heterofl": ("masked-cross-entropy", "cross-entropy"),
    "scalefl": ("self-distillation",),
}
"""Of runs that named what their clients minimise: what their methods still do."""


def read(file: Path) -> DictConfig:
    """Return what a file says, by the keys of today."""
    values = read_settings(file)
    for name in NEEDED:
        if name not in values:
            raise ConfigError(f"{file} has no {name}: expected the configuration of a run")
    try:
        config = OmegaConf.create(dict(values))
        _respell(config)
    except (OmegaConfBaseException, ConfigError) as error:
        raise ConfigError(in_file(file, error)) from error
    return config


def read_settings(file: Path) -> Mapping[str, Any]:
    """Return what a file says, by name; some parts may not be there."""
    try:
        values: Mapping[str, Any] = read_yaml(file, Saved)
    except DocumentError as error:
        raise ConfigError(str(error)) from error
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror or error}") from error
    return values


def in_file(file: Path, error: Exception) -> str:
    """Return an error's text in one line, after the file that it is about."""
    return f"{file}: {' '.join(str(error).split())}"


def _respell(config: DictConfig) -> None:
    """Give the keys of a run that was started before they were renamed their names of today."""
    with open_dict(config):
        if "window" in config:
            config["in_flight"] = config.pop("window")
        strategy = config.get("strategy") or {}
        if "objective" in strategy:
            name, objective = strategy["name"], strategy.pop("objective")
            if objective not in OLD_OBJECTIVES.get(name, ("cross-entropy",)):
                raise ConfigError(
                    f"this run of {name} was started with the objective {objective}, which {name} "
                    "has no longer: go on with the version of nestfl that it was started with"
                )
            strategy.update(strategy.pop("objective_settings", {}))
            if name == "heterofl":
                strategy["masked_loss"] = objective == "masked-cross-entropy"
            if name != "scalefl":
                strategy.pop("window", None)
        if strategy.get("name") == "heterofl":
            strategy.setdefault("own_classes", False)  # it was not a choice yet
