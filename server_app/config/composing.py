"""The configuration: composed by Hydra from conf/ and overrides, kept with a run as YAML.

`compose("strategy=heterofl model=resnet20 train.lr=0.05")`. Overrides are split as a shell does.
With `resume=PATH` the settings are those the run was started with, and overrides change them.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Iterable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf._utils import get_omega_conf_dumper
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

import plugins
from data.homes import with_home
from data.spec import DatasetSpec
from server_app.config.keys import copies, keys_by_name, values_by_key
from server_app.config.own_data import with_own_data
from server_app.config.saved import CONFIG_FILE, run_directory
from server_app.config.settings import Config
from server_app.config.typed import EXTRA, ConfigError, build, choose_from, reject_unknown
from strategies.federation import CheckpointConfig, FleetConfig, ModelConfig
from strategies.method_settings import MethodSettings, PlannedSettings
from strategies.registry import METHODS, method

__all__ = [
    "Config",
    "ConfigError",
    "choices",
    "compose",
    "compose_dataset",
    "dump",
    "groups",
    "load",
    "plain",
    "settings_by_name",
    "with_absolute_paths",
]

OLD_OBJECTIVES = {
    "heterofl": ("masked-cross-entropy", "cross-entropy"),
    "scalefl": ("self-distillation",),
}
"""Of runs that named what their clients minimise: what their methods still do."""
CONF = Path(__file__).resolve().parents[2] / "conf"


def compose(overrides: str | Iterable[str] = "") -> Config:
    """Return the configuration that overrides make, or raise `ConfigError` for the wrong one."""
    base, given = _overridden(overrides)
    config = _built(base, given)
    try:
        config.tracker.check_installed()
    except ValueError as error:
        raise ConfigError(str(error)) from error
    return config if config.resume else _with_the_tokenizer_of_its_weights(config)


def compose_dataset(overrides: str | Iterable[str] = "", look: bool = True) -> DatasetSpec:
    """Return the data set of the configuration that overrides make, whatever trains on it.

    Without a look at data of one's own, what only its files tell is left open.
    """
    base, given = _overridden(overrides)
    values = _completed(base, given if look else None)
    return _dataset(values, _strategy(values))


def _overridden(overrides: str | Iterable[str]) -> tuple[DictConfig, Collection[str] | None]:
    """Return what the overrides make of conf/ or a saved run, and of a new run their keys."""
    parsed = [_parse(text) for text in _split(overrides)]
    chosen = [override for override in parsed if override.key in groups()]
    changed = [override for override in parsed if override.key not in groups()]
    resumed = [override.value for override in changed if override.key == "resume"]
    if resumed and resumed[-1] is not None:
        base = _saved(str(resumed[-1]), chosen)
    else:
        base = _composed(chosen)
    for override in changed:
        _check_key(base, override.key)
        _set(base, override)
    is_new = not resumed or resumed[-1] is None
    return base, {override.key for override in changed} if is_new else None


def _built(base: DictConfig, given: Collection[str] | None) -> Config:
    """Return the checked configuration; a wrong value is told under the key it was taken from."""
    try:
        return _checked_config(_completed(base, given))
    except ConfigError as error:
        for copy, source in copies(base).items():
            part, _, name = copy.rpartition(".")
            told = f"{part}: {name} is "  # as a part's own checks begin
            if str(error).startswith(told):
                raise ConfigError(f"{source} is {str(error).removeprefix(told)}") from error
        raise


def _completed(base: DictConfig, given: Collection[str] | None) -> Mapping[str, Any]:
    """Return plain values; a new run looks at data of one's own, and others have done so."""
    values = _resolved(base)
    return values if given is None else with_own_data(values, given)


def _checked_config(values: Mapping[str, Any]) -> Config:
    """Return the configuration of plain values; the strategy's are its method's own settings."""
    fleet = build(FleetConfig, values["fleet"], "fleet")  # first: strategies copy its budgets
    chosen = _strategy(values)
    model = chosen.complete(build(ModelConfig, values["model"], "model"))
    data = _dataset(values, chosen)
    parts = {"fleet": fleet, "strategy": chosen, "model": model, "dataset": data}
    return build(Config, {**values, **parts})


def _strategy(values: Mapping[str, Any]) -> MethodSettings:
    given = dict(values.get("strategy") or {})
    try:
        settings = method(str(given.get("name"))).Settings
    except ValueError as error:
        raise ConfigError(f"strategy.name: {error}") from error
    return build(settings, given, "strategy")


def _dataset(values: Mapping[str, Any], strategy: MethodSettings) -> DatasetSpec:
    return strategy.complete_data(build(DatasetSpec, values["dataset"], "dataset"))


def _with_the_tokenizer_of_its_weights(config: Config) -> Config:
    """Let a new run's texts become the tokens that its pre-trained weights know."""
    weights, data = config.model.weights, config.dataset
    if weights is None or data.holds != "tokens" or data.tokenizer is not None:
        return config
    from server_app.config.weights import tokenizer_of

    return replace(config, dataset=replace(data, tokenizer=tokenizer_of(weights)))


def with_absolute_paths(folder: Path, overrides: str | Iterable[str]) -> list[str]:
    """Return the overrides with paths that do not depend on the working directory any more."""
    return [_with_absolute_path(folder, text) for text in _split(overrides)]


def _with_absolute_path(folder: Path, override: str) -> str:
    key, _, value = override.partition("=")
    if key in ("dataset.path", "strategy.unlabelled.path", "resume") and value != "null":
        return f"{key}={folder / with_home(value)}"
    if key in ("model.weights", "dataset.tokenizer"):
        path = folder / with_home(value)
        return f"{key}={path}" if path.exists() else override  # it may be another name
    return override


def groups() -> list[str]:
    """Return what can be chosen by name: the folders of conf/."""
    return sorted(folder.name for folder in CONF.iterdir() if folder.is_dir())


def choices(group: str) -> list[str]:
    """Return the names that a group can be set to; files with a leading underscore are parts.

    Plugins have files, too, and what they register needs none.
    """
    return sorted({*_files_of(group), *plugins.offered(group)})


def _files_of(group: str) -> set[str]:
    """Return the names of a group's files."""
    files = (file for folder in (CONF, *_own_folders()) for file in (folder / group).glob("*.yaml"))
    return {file.stem for file in files if not file.stem.startswith("_")}


def _own_folders() -> list[Path]:
    """Return the folders of choices that loaded plugins have."""
    return [plugin.conf for plugin in plugins.loaded() if plugin.conf is not None]


def settings_by_name() -> dict[str, str]:
    """Return what can be set: the groups, and each key under itself and under its last name."""
    config = _composed([])
    known = [*groups(), *values_by_key(config)]
    return keys_by_name(config) | {key: key for key in known}


def plain(config: Config) -> dict[str, Any]:
    """Return the configuration as plain values, by the keys that overrides have."""
    values = asdict(config)
    for part in ("model", "aggregation"):
        values[part] |= values[part].pop(EXTRA)
    return {key: _lists(value) for key, value in values.items()}


def dump(config: Config) -> str:
    """Return the configuration as YAML, which `load` reads back equal.

    What is not ASCII is escaped, unlike by `OmegaConf.to_yaml`: YAML takes some of it for the end
    of a line.
    """
    dumper = get_omega_conf_dumper()  # quotes texts that look like numbers
    text: str = yaml.dump(plain(config), Dumper=dumper, allow_unicode=False, sort_keys=False)
    return text


def load(file: Path) -> Config:
    """Return the configuration that a run was started with, its plugins being loaded."""
    plugins.load_kept(file.parent)
    return _checked_config(_resolved(_read(file)))


@dataclass(frozen=True)
class _Override:
    key: str
    value: Any


def _split(overrides: str | Iterable[str]) -> list[str]:
    if not isinstance(overrides, str):
        return list(overrides)
    try:
        return shlex.split(overrides)
    except ValueError as error:
        raise ConfigError(f"cannot read the overrides {overrides}: {error}") from error


def _parse(text: str) -> _Override:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"{text!r} is no override: expected key=value, without spaces")
    if key[0] in "+~":
        raise ConfigError(f"{text!r}: keys cannot be added or removed; give key=value")
    if key in groups():
        return _Override(key, _checked_choice(key, value))
    return _Override(key, _parse_value(key, value))


def _checked_choice(group: str, name: str) -> str:
    plugins.search(lambda: name in choices(group))
    offered = choices(group)
    if name not in offered:
        raise ConfigError(f"unknown {group} {name!r}; {choose_from(name, offered)}")
    return name


def _parse_value(key: str, text: str) -> Any:
    """Hydra's reading of a value; a text that its grammar has no place for is a plain text."""
    try:
        override = OverridesParser.create().parse_override(f"value={text}")
        if not override.is_sweep_override():
            return override.value()
    except HydraException as error:
        if text[0] in "[{":
            raise ConfigError(f"{key}: cannot read the value {text!r}") from error
    return text


def _composed(chosen: list[_Override]) -> DictConfig:
    names = {override.key: override.value for override in chosen}  # the last of each group
    names |= _own_scale(names)
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


def _offer_plugins() -> list[str]:
    """Let Hydra choose what plugins offer; return the overrides that tell it of their folders."""
    settings = {"model": lambda name: {"name": name}, "strategy": _settings_of}
    for group, values in settings.items():
        for name in set(plugins.offered(group)) - _files_of(group):
            ConfigStore.instance().store(name, values(name), group)
    folders = [f"file://{folder}" for folder in _own_folders()]
    return [f"hydra.searchpath={json.dumps(folders, ensure_ascii=False)}"] if folders else []


def _settings_of(strategy: str) -> dict[str, Any]:
    """Return the defaults of a method's settings; the fleet's budgets where they make no levels."""
    settings = method(strategy).Settings
    values = {
        each.name: each.default if each.default_factory is MISSING else each.default_factory()
        for each in fields(settings)
    }
    known = {
        key: _lists(asdict(value) if is_dataclass(value) else value)  # type: ignore[arg-type]
        for key, value in values.items()
        if value is not MISSING
    }
    if issubclass(settings, PlannedSettings) and not any(map(known.get, settings.ways)):
        known["ratios"] = "${fleet.budgets}"
    return {**known, "name": strategy}


def _own_scale(names: Mapping[str, str]) -> dict[str, str]:
    """Choose the experiment's own file of the scale, scale/SCALE/EXPERIMENT.yaml, if it has one.

    Hydra cannot: a file that it finds by an interpolated name may not choose a data set.
    """
    own = f"{names.get('scale')}/{names.get('experiment')}"
    return {"scale": own} if (CONF / "scale" / f"{own}.yaml").is_file() else {}


def _check_submodels(config: DictConfig, names: Mapping[str, str]) -> None:
    """Raise where submodels were asked for that the strategy would not use, or another variant."""
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
    """Set what an experiment says under `per_strategy` for the strategy that was chosen.

    What it says for a method is for all variants of it; what it says for a variant, such as
    fedfa_width, comes on top.
    """
    known = sorted({*METHODS, *choices("strategy")})
    with open_dict(config):
        settings = config.pop("per_strategy", {})
        reject_unknown("per_strategy", settings, known)
        variant = names.get("strategy", config.strategy.name)  # none, if the experiment chose it
        for name in dict.fromkeys([config.strategy.name, variant]):
            config.strategy.merge_with(settings.get(name, {}))


def _complete_model(config: DictConfig) -> None:
    """Give the model all keys that it has, whether its file names them or not."""
    from models import family

    settings = {field.name: field.default for field in fields(ModelConfig) if field.name != EXTRA}
    known = settings | dict.fromkeys(family(config.model.name).options)  # null: its own default
    with open_dict(config.model):
        for name, default in known.items():
            config.model.setdefault(name, default)


def _complete_strategy(config: DictConfig) -> None:
    """Give the strategy all keys that its method has, whether its file names them or not."""
    try:
        settings = method(str(config.strategy.name)).Settings
    except ValueError:
        return  # which is told of when the configuration is built
    with open_dict(config.strategy):
        for field in fields(settings):
            if field.default is not MISSING:  # what has settings of its own is in its file
                config.strategy.setdefault(field.name, field.default)


def _saved(resume: str, chosen: list[_Override]) -> DictConfig:
    for override in chosen:
        raise ConfigError(
            f"{override.key}={override.value} with resume={resume}: "
            f"a run goes on with its own {override.key}; leave it out"
        )
    try:
        directory = run_directory(Path(resume))
    except ConfigError as error:
        raise ConfigError(f"resume: {error}") from error
    plugins.load_kept(directory)
    saved = _read(directory / CONFIG_FILE)
    # A run saved before these were settings lacks them.
    saved.setdefault("engine", Config.engine)
    saved.checkpoint.setdefault("best", CheckpointConfig.best)
    saved.evaluate.setdefault("personal_every", None)
    return saved


def _read(file: Path) -> DictConfig:
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


def _check_key(config: DictConfig, key: str) -> None:
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
    """Return the keys that may be meant: any, if the group was left out, or those without one."""
    keys = keys_by_name(config)
    return {name: key for name, key in keys.items() if not group or "." not in key}


def _set(config: DictConfig, override: _Override) -> None:
    try:
        OmegaConf.update(config, override.key, override.value)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{override.key}: cannot read the value {override.value!r}") from error


def _resolved(config: DictConfig) -> Mapping[str, Any]:
    try:
        values: Any = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{error.full_key}: {str(error).splitlines()[0]}") from error
    return {str(key): value for key, value in values.items()}


def _lists(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _lists(item) for key, item in value.items()}
    return [_lists(item) for item in value] if isinstance(value, (list, tuple)) else value
