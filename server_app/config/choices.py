"""Lists the choices and keys of conf/ and of plugins, and lets Hydra compose the chosen ones."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

import plugins
from server_app.config.saved import flat
from server_app.config.typed import EXTRA, ConfigError, reject_unknown
from strategies.federation import ModelConfig
from strategies.method_settings import MethodSettings, PlannedSettings
from strategies.registry import METHODS, method

CONF = Path(__file__).resolve().parents[2] / "conf"
COPY = re.compile(r"\$\{([\w.]+)\}")


def groups() -> list[str]:
    """Return the groups of choices: the folders of conf/."""
    return sorted(folder.name for folder in CONF.iterdir() if folder.is_dir())


def choices(group: str) -> list[str]:
    """Return the names that a group can be set to; files with a leading underscore are parts.

    A plugin's choices are its files, and the names that it registers without a file.
    """
    return sorted({*_files_of(group), *plugins.offered(group)})


def settings_by_name() -> dict[str, str]:
    """Return the groups and keys that can be set: each key under itself and under its last name."""
    config = composed({})
    known = [*groups(), *values_by_key(config)]
    return keys_by_name(config) | {key: key for key in known}


def composed(chosen: Mapping[str, str]) -> DictConfig:
    """Return the configuration of these choices by group, before any key is changed."""
    names = {**chosen, **_own_scale(chosen)}
    try:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            chosen_files = [f"{group}={name}" for group, name in names.items()]
            config = hydra_compose("config", [*chosen_files, *_offer_plugins()])
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        raise ConfigError(f"conf/ cannot be read: {' '.join(str(error).split())}") from error
    _check_submodels(config, names)
    _merge_per_strategy(config, names)
    _complete_model(config)
    _complete_strategy(config)
    return config


def values_by_key(config: DictConfig) -> dict[str, Any]:
    """Return each value under its full key; a copied value is its source's key in ${}."""
    values: Any = OmegaConf.to_container(config, resolve=False)
    return flat(values)


def copies(config: DictConfig) -> dict[str, str]:
    """Return the keys whose values are copies, each with the key of its source."""
    found = {key: COPY.fullmatch(str(value)) for key, value in values_by_key(config).items()}
    return {key: match[1] for key, match in found.items() if match}


def keys_by_name(config: DictConfig) -> dict[str, str]:
    """Return each key under its last name, the shortest key if several share it; without copies."""
    keys = [key for key in values_by_key(config) if key not in copies(config)]
    return {key.rpartition(".")[2]: key for key in sorted(keys, key=_depth, reverse=True)}


def _depth(key: str) -> int:
    return key.count(".")


def lists(value: Any) -> Any:
    """Return a value with its tuples as lists, since YAML and Hydra have no tuples."""
    if isinstance(value, Mapping):
        return {key: lists(item) for key, item in value.items()}
    return [lists(item) for item in value] if isinstance(value, (list, tuple)) else value


def _files_of(group: str) -> set[str]:
    """Return the names of a group's files."""
    files = (file for folder in (CONF, *_own_folders()) for file in (folder / group).glob("*.yaml"))
    return {file.stem for file in files if not file.stem.startswith("_")}


def _own_folders() -> list[Path]:
    """Return the folders of choices of the loaded plugins."""
    return [plugin.conf for plugin in plugins.loaded() if plugin.conf is not None]


def _offer_plugins() -> list[str]:
    """Offer plugins' choices to Hydra; return the overrides that name their folders."""
    settings = {"model": lambda name: {"name": name}, "strategy": _settings_of}
    for group, values in settings.items():
        for name in set(plugins.offered(group)) - _files_of(group):
            ConfigStore.instance().store(name, values(name), group)
    folders = [f"file://{folder}" for folder in _own_folders()]
    return [f"hydra.searchpath={json.dumps(folders, ensure_ascii=False)}"] if folders else []


def _settings_of(strategy: str) -> dict[str, Any]:
    """Return a plugin's choice of its method: the inherited settings, and its own defaults.

    If neither makes levels, the levels cost what the fleet's tiers afford.
    """
    own = {**_own_defaults(strategy), "name": strategy}
    if parent := _parent_of(strategy):
        return {"defaults": [parent, "_self_"], **own}
    settings = method(strategy).Settings
    if issubclass(settings, PlannedSettings) and not any(map(own.get, settings.ways)):
        own["ratios"] = "${fleet.budgets}"
    return own


def _own_defaults(strategy: str) -> dict[str, Any]:
    """Return the defaults of a method's settings, without those that it inherits unchanged."""
    settings, parent = method(strategy).Settings, _parent_of(strategy)
    own = _defaults(settings)
    if parent is None:
        return own
    inherited = _defaults(method(parent).Settings)
    own = {k: v for k, v in own.items() if k not in inherited or v != inherited[k]}
    if issubclass(settings, PlannedSettings) and any(map(own.get, settings.ways)):
        own |= {way: own.get(way) for way in settings.ways}  # in place of the inherited way
    return own


def _defaults(settings: type[MethodSettings]) -> dict[str, Any]:
    values = {
        each.name: each.default if each.default_factory is MISSING else each.default_factory()
        for each in fields(settings)
    }
    return {
        key: lists(asdict(value) if is_dataclass(value) else value)  # type: ignore[arg-type]
        for key, value in values.items()
        if value is not MISSING
    }


def _parent_of(strategy: str) -> str | None:
    """Return the parent of a plugin's method whose settings it takes or extends.

    It is None for the shipped methods, each of which has a file of its own.
    """
    if strategy not in plugins.offered("strategy"):
        return None
    names = {place: name for name, place in METHODS.items() if name != strategy}
    found = method(strategy)
    for kind in found.__mro__[1:]:
        name = names.get(f"{kind.__module__}:{kind.__qualname__}")
        if name is not None:
            return name if issubclass(found.Settings, method(name).Settings) else None
    return None


def _own_scale(names: Mapping[str, str]) -> dict[str, str]:
    """Choose the experiment's own file of the scale, scale/SCALE/EXPERIMENT.yaml, if it has one.

    Hydra cannot: a file that it finds by an interpolated name may not choose a data set.
    """
    own = f"{names.get('scale')}/{names.get('experiment')}"
    return {"scale": own} if (CONF / "scale" / f"{own}.yaml").is_file() else {}


def _check_submodels(config: DictConfig, names: Mapping[str, str]) -> None:
    """Raise if the chosen submodels are unused by the strategy, or belong to another variant."""
    strategy, chosen = names.get("strategy", config.strategy.name), names.get("submodels", "none")
    if chosen != "none" and "patterns" not in config.strategy:
        raise ConfigError(
            f"submodels={chosen} with strategy={strategy}: they are made for nefl; leave them out, "
            "or choose that strategy"
        )
    table = config.get("per_strategy", {}).get("nefl", {})
    if (
        strategy.startswith("nefl_")
        and table.get("cut", config.strategy.cut) != config.strategy.cut
    ):
        raise ConfigError(
            f"strategy={strategy} cuts {config.strategy.cut}, but its submodels cut {table.cut}: "
            "choose other submodels (none finds them), or strategy=nefl"
        )


def _merge_per_strategy(config: DictConfig, names: Mapping[str, str]) -> None:
    """Apply an experiment's `per_strategy` settings for the chosen strategy.

    Settings under a method apply to all its variants; those under a variant, such as fedfa_width,
    come on top. A plugin's method inherits the settings for the methods above it.
    """
    known = sorted({*METHODS, *choices("strategy")})
    with open_dict(config):
        settings = config.pop("per_strategy", {})
        reject_unknown("per_strategy", settings, known)
        variant = names.get("strategy", config.strategy.name)  # none if the experiment chose it
        for said in _inherited(settings, config.strategy.name):
            config.strategy.merge_with(said)
        for name in dict.fromkeys([config.strategy.name, variant]):
            config.strategy.merge_with(settings.get(name, {}))


def _inherited(settings: Mapping[str, Any], strategy: str) -> list[dict[str, Any]]:
    """Return the settings for the methods above a plugin's, highest first, as far as inherited.

    A setting that has a default of its own is not inherited.
    """
    found, own = list[dict[str, Any]](), set[str]()
    while (parent := _parent_of(strategy)) is not None:
        own |= _own_defaults(strategy).keys()
        said = settings.get(parent, {})
        found.append({key: value for key, value in said.items() if key not in own})
        strategy = parent
    return found[::-1]


def _complete_model(config: DictConfig) -> None:
    """Give the model all its keys, including those that its file does not name."""
    from models import family

    settings = {field.name: field.default for field in fields(ModelConfig) if field.name != EXTRA}
    known = settings | dict.fromkeys(family(config.model.name).options)  # null: the family's own
    with open_dict(config.model):
        for name, default in known.items():
            config.model.setdefault(name, default)


def _complete_strategy(config: DictConfig) -> None:
    """Give the strategy all keys of its method, including those that its file does not name."""
    try:
        settings = method(str(config.strategy.name)).Settings
    except ValueError:
        return  # building the configuration reports the unknown name
    with open_dict(config.strategy):
        for field in fields(settings):
            if field.default is not MISSING:  # a field without default stands in the method's file
                config.strategy.setdefault(field.name, field.default)
