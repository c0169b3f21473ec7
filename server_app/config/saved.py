"""Reads the configuration that a run directory keeps, also one of an earlier version."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import plugins
from protocol.documents import DocumentError, read_yaml
from server_app.config.typed import ConfigError

if TYPE_CHECKING:
    from omegaconf import DictConfig

CONFIG_FILE = "config.yaml"
A_RUNS_OWN = ("output", "name", "resume", "engine", "run_id", "report", "tracker")
"""Settings that change no result."""
NEEDED = ("model", "dataset", "fleet", "strategy")
"""Parts that every run has; other parts that an older version lacks get their defaults."""
ADDED: Mapping[str, Any] = {
    "engine": "ray",
    "checkpoint": {"best": True},
    "evaluate": {"personal_every": None},
}
"""Values of runs that are older than these settings, so that overrides can change them."""
OLD_OBJECTIVES = {
    "heterofl": ("masked-cross-entropy", "cross-entropy"),
    "scalefl": ("self-distillation",),
}
"""Client objectives that each method still has, by the names in older runs' files."""

GONE: Mapping[str, Mapping[str, object]] = {
    "depthfl": {"answer": "ensemble"},
    "fedfa": {"population": 8},
    "flexifed": {"population": 8},
    "feddf": {"distillation.average": "logits", "distillation.threads": 1},
}
"""Settings that each method no longer has, with the one value that it still works by."""

Named = dict[str, Any]


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


def run_directory(path: Path) -> Path:
    """Return the run directory that a checkpoint, its folder or the directory itself belongs to."""
    for folder in (path, *path.resolve().parents[:2]):
        if (folder / CONFIG_FILE).is_file():
            return folder
    raise ConfigError(f"{path} is no run directory and in none (no {CONFIG_FILE})")


def read(file: Path) -> DictConfig:
    """Return a run's configuration by the keys of today; its plugins are loaded first."""
    from omegaconf import OmegaConf  # not needed by readers of single settings
    from omegaconf.errors import OmegaConfBaseException

    plugins.load_kept(file.parent)
    values = read_settings(file)
    for name in NEEDED:
        if name not in values:
            raise ConfigError(f"{file} has no {name}: expected the configuration of a run")
    try:
        return OmegaConf.create(_respelled(values))
    except (OmegaConfBaseException, ConfigError) as error:
        raise ConfigError(in_file(file, error)) from error


def read_settings(file: Path) -> Mapping[str, Any]:
    """Return a file's settings by name; some parts may be missing."""
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


def _respelled(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an older run under their names of today."""
    named = {"in_flight" if name == "window" else name: value for name, value in values.items()}
    for name, added in ADDED.items():
        if isinstance(added, Mapping):
            named[name] = {**added, **named.get(name, {})}
        else:
            named.setdefault(name, added)
    return {**named, "strategy": _respelled_strategy(values["strategy"])}


def _respelled_strategy(values: Mapping[str, Any]) -> dict[str, Any]:
    strategy, name = dict(values), values.get("name")
    if "objective" in strategy:
        objective = strategy.pop("objective")
        if objective not in OLD_OBJECTIVES.get(str(name), ("cross-entropy",)):
            raise ConfigError(
                f"this run of {name} was started with the objective {objective}, which {name} "
                "has no longer: go on with the version of nestfl that it was started with"
            )
        strategy |= strategy.pop("objective_settings", {})
        if name == "heterofl":
            strategy["masked_loss"] = objective == "masked-cross-entropy"
        if name != "scalefl":
            strategy.pop("window", None)
    if name == "heterofl":
        strategy.setdefault("own_classes", False)  # older runs had no choice
    for key, usual in GONE.get(str(name), {}).items():
        _drop(strategy, key, usual)
    return strategy


def _drop(strategy: dict[str, Any], key: str, usual: object) -> None:
    """Take a setting that is gone out of a run's own; raise where it had another value."""
    part, _, own = key.rpartition(".")
    if part:
        strategy[part] = dict(strategy.get(part, {}))
    values = strategy[part] if part else strategy
    value = values.pop(own, usual)
    if value != usual:
        raise ConfigError(
            f"strategy.{key} is {value}, a setting that is gone ({usual} is what is left): go on "
            "with the version of nestfl that the run was started with"
        )


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values under their full keys."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = value
    return found


def that_matter(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of full keys, without the settings that change no result."""
    return {key: value for key, value in values.items() if key.split(".")[0] not in A_RUNS_OWN}
