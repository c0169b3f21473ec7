"""Reads overrides as they are typed (`key=value`), as Hydra does, and sets them where they belong.

It also finds the folder from which a simulation's relative paths start. `flwr run .` sends the app
to a SuperLink that stays. It may have been started in another checkout, and Flower does not tell
which one a run came from. So the SuperLink's folder is taken only if it holds the same app, file
by file.
"""

from __future__ import annotations

import logging
import shlex
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

import plugins
from data.homes import with_home
from server_app.config.choices import choices, groups, keys_by_name
from server_app.config.typed import ConfigError, choose_from, reject_unknown

PATHS = ("dataset.path", "strategy.unlabelled.path", "resume", "model.weights", "output",
         "dataset.tokenizer")  # fmt: skip
"""Keys of paths. An empty path is refused, because it would be the working directory."""
APP = Path(__file__).resolve().parents[2]
"""The folder of the running app; in a simulation Flower has unpacked it there."""
NEUTRAL = "nestfl-results"
"""Folder in the user's home for runs whose checkout is not known."""
log = logging.getLogger("flwr")  # the logger that `flwr log` shows


@dataclass(frozen=True)
class Override:
    """The change of one override: a group or a key, and its new value."""

    key: str
    value: Any


def split(overrides: str | Iterable[str]) -> list[str]:
    """Return overrides one by one; a single text is split like a shell does."""
    if not isinstance(overrides, str):
        return list(overrides)
    try:
        return shlex.split(overrides)
    except ValueError as error:
        raise ConfigError(f"cannot read the overrides {overrides}: {error}") from error


def parse(text: str) -> Override:
    """Return an override of a group's choice, or of a key that is looked up later."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"{text!r} is no override: expected key=value, without spaces")
    if key[0] in "+~":
        raise ConfigError(f"{text!r}: keys cannot be added or removed; give key=value")
    if key in groups():
        return Override(key, _checked_choice(key, value))
    return Override(key, _parse_value(key, value))


def _checked_choice(group: str, name: str) -> str:
    plugins.search(lambda: name in choices(group))
    offered = choices(group)
    if name not in offered:
        raise ConfigError(f"unknown {group} {name!r}; {choose_from(name, offered)}")
    return name


def _parse_value(key: str, text: str) -> Any:
    """Return a value as Hydra reads it; text that its grammar refuses stays plain text."""
    try:
        override = OverridesParser.create().parse_override(f"value={text}")
        if not override.is_sweep_override():
            return override.value()
    except HydraException as error:
        if text[0] in "[{":
            raise ConfigError(f"{key}: cannot read the value {text!r}") from error
    return text


def with_absolute_paths(folder: Path, overrides: str | Iterable[str]) -> list[str]:
    """Return the overrides with absolute paths; relative ones start at `folder`."""
    return [_with_absolute_path(folder, text) for text in split(overrides)]


def _with_absolute_path(folder: Path, override: str) -> str:
    key, equals, value = override.partition("=")
    if key in PATHS and equals and not value.strip():
        raise ConfigError(f"{key} is empty: expected a path")
    if key in ("dataset.path", "strategy.unlabelled.path", "resume") and value != "null":
        return f"{key}={folder / with_home(value)}"
    if key in ("model.weights", "dataset.tokenizer"):
        path = folder / with_home(value)
        return f"{key}={path}" if path.exists() else override  # otherwise it may be a name
    return override


def check_key(config: DictConfig, key: str) -> None:
    """Raise unless a configuration has this key, for a single value."""
    node: Any = config
    path: list[str] = []
    for name in key.split("."):
        if not isinstance(node, DictConfig):
            raise ConfigError(f"no key {key!r}: {'.'.join(path)} is a single value")
        known = {*map(str, node), *(groups() if node is config else ())}
        if name not in known:
            reject_unknown(".".join(path), {name: None}, sorted(known), _elsewhere(config, path))
        node = node._get_node(name)
        path.append(name)
    if isinstance(node, DictConfig):
        first = str(next(iter(node)))
        raise ConfigError(f"{key}: set its keys one by one, {key}.{first}=...")


def _elsewhere(config: DictConfig, group: list[str]) -> dict[str, str]:
    """Return the full keys that may be meant, by last name; in a group only top-level keys."""
    keys = keys_by_name(config)
    return {name: key for name, key in keys.items() if not group or "." not in key}


def set_value(config: DictConfig, override: Override) -> None:
    """Apply an override to the configuration."""
    try:
        OmegaConf.update(config, override.key, override.value)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{override.key}: cannot read the value {override.value!r}") from error


def start_of_paths(started_in: Path, app: Path = APP) -> Path:
    """Return the SuperLink's working directory, or a neutral folder with a warning."""
    if _sources(app) == _sources(started_in, like=app):
        return started_in
    neutral = Path.home() / NEUTRAL
    log.warning(
        "The SuperLink was started in %s, which does not hold the app that is run: relative paths "
        "start at %s instead. Give absolute ones (output=..., dataset.path=...), or end that "
        "SuperLink and start again.",
        started_in,
        neutral,
    )
    return neutral


def _sources(folder: Path, like: Path | None = None) -> dict[Path, bytes]:
    """Return the files of a folder that Flower would send, by the patterns of `like`."""
    settings = tomllib.loads(((like or folder) / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = settings["tool"]["flwr"]["app"]["fab-include"]
    files = {file for pattern in patterns for file in folder.glob(pattern)}
    return {file.relative_to(folder): file.read_bytes() for file in files}
