"""The configuration of a run as it was saved, maybe by an earlier version."""

from __future__ import annotations

from pathlib import Path

from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from server_app.config.typed import ConfigError

OLD_OBJECTIVES = {
    "heterofl": ("masked-cross-entropy", "cross-entropy"),
    "scalefl": ("self-distillation",),
}
"""Of runs that named what their clients minimise: what their methods still do."""


def read(file: Path) -> DictConfig:
    """Return what a file says, by the keys of today."""
    try:
        config = OmegaConf.load(file)
    except (OSError, OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(f"{file} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(config, DictConfig):
        raise ConfigError(f"{file} holds no configuration")
    _respell(config)
    return config


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
