"""The configuration of a run: composed by Hydra from conf/ and overrides, kept as YAML.

`compose("strategy=heterofl model=resnet20 train.lr=0.05")`. Overrides are split as a shell does.
With `resume=PATH` the settings are those the run was started with, and overrides change them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf._utils import get_omega_conf_dumper
from omegaconf.errors import OmegaConfBaseException

from data.catalog import DataError
from data.spec import OWN_DATA, DatasetSpec
from server_app.config.choices import composed, copies, groups, lists
from server_app.config.overrides import Override, check_key, parse, set_value, split
from server_app.config.saved import CONFIG_FILE, in_file, read, run_directory
from server_app.config.typed import EXTRA, ConfigError, build
from strategies.federation import Federation, FleetConfig, ModelConfig, named
from strategies.method_settings import MethodSettings
from strategies.registry import method

__all__ = [
    "Composed",
    "Config",
    "ConfigError",
    "compose",
    "compose_and_tell",
    "compose_dataset",
    "dump",
    "load",
    "plain",
]
Engine = Literal["ray", "local"]


@dataclass(frozen=True)
class TrackerConfig:
    """Settings of a tracker, which gets a run's numbers too; each tracker has some of them."""

    name: Literal["none", "wandb", "mlflow"] = "none"
    project: str = "nestfl"
    mode: Literal["online", "offline"] = "online"
    uri: str | None = None

    def check_installed(self) -> None:
        """Raise `ValueError` if the tracker's package is not installed."""
        if self.name != "none" and find_spec(self.name) is None:
            raise ValueError(
                f"tracker={self.name} takes the package {self.name}, which is not installed: "
                f"pip install 'nestfl[{self.name}]'"
            )


@dataclass(frozen=True, kw_only=True)
class Config(Federation):
    """All settings of a run: the federation, the method's settings, and the place of its record."""

    strategy: MethodSettings
    output: str
    name: str | None
    resume: str | None
    report: bool = True
    """Write an HTML report at the end of the run; default: true."""
    tracker: TrackerConfig = field(default_factory=TrackerConfig)
    engine: Engine = "ray"
    """Engine of `nestfl run`: Ray, or one process (local). Both give the same weights."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name is not None and not re.fullmatch(r"\w[\w.-]*", self.name):
            raise ValueError(f"name is {self.name!r}: expected letters, digits, '-', '_' and '.'")
        if not self.output.strip():
            raise ValueError("output is empty: expected a folder for run directories, such as runs")
        with named("strategy"):
            self.strategy.check(self)

    @property
    def label(self) -> str:
        """A short label of the run's choices: method, network and data set."""
        return f"{self.strategy.name}-{self.model.name}-{self.dataset.name}"


class Composed(NamedTuple):
    """A configuration, and notes on values that were changed without being asked for."""

    config: Config
    notes: tuple[str, ...] = ()


def compose(overrides: str | Iterable[str] = "") -> Config:
    """Return the configuration of these overrides; raise `ConfigError` if it is invalid."""
    return compose_and_tell(overrides).config


def compose_and_tell(overrides: str | Iterable[str] = "") -> Composed:
    """Return the configuration of these overrides, and notes for the user."""
    base, given = _overridden(overrides)
    try:
        config = _built(base, given)
    except ConfigError:
        if given is None:
            load(run_directory(Path(str(base.resume))) / CONFIG_FILE)  # names a file that is wrong
        raise
    try:
        config.tracker.check_installed()
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if config.resume:
        return Composed(config)
    asked, found = base.clients_per_round, config.clients_per_round
    note = f"clients_per_round lowered from {asked} to {found}, the clients of the fleet"
    return Composed(_with_the_tokenizer_of_its_weights(config), (note,) if asked != found else ())


def compose_dataset(overrides: str | Iterable[str] = "", look: bool = True) -> DatasetSpec:
    """Return the data set in the configuration of these overrides.

    With `look=False` the facts that only the user's own files tell are left out.
    """
    base, given = _overridden(overrides)
    values = _completed(base, given if look else None)
    return _dataset(values, _strategy(values))


def _overridden(overrides: str | Iterable[str]) -> tuple[DictConfig, Collection[str] | None]:
    """Return conf/ or the saved run with the overrides applied; for a new run also their keys."""
    parsed = [parse(text) for text in split(overrides)]
    chosen = [override for override in parsed if override.key in groups()]
    changed = [override for override in parsed if override.key not in groups()]
    resumed = [override.value for override in changed if override.key == "resume"]
    if resumed and resumed[-1] is not None:
        base = _saved(str(resumed[-1]), chosen)
    else:
        base = composed({override.key: override.value for override in chosen})
    for override in changed:
        check_key(base, override.key)
        set_value(base, override)
    is_new = not resumed or resumed[-1] is None
    return base, {override.key for override in changed} if is_new else None


def _built(base: DictConfig, given: Collection[str] | None) -> Config:
    """Return the checked configuration; an error names the key that the value was copied from."""
    try:
        return _checked_config(_completed(base, given))
    except ConfigError as error:
        for copy, source in copies(base).items():
            part, _, name = copy.rpartition(".")
            told = f"{part}: {name} is "  # the start of a part's own error
            if str(error).startswith(told):
                raise ConfigError(f"{source} is {str(error).removeprefix(told)}") from error
        raise


def _completed(base: DictConfig, given: Collection[str] | None) -> Mapping[str, Any]:
    """Return plain values; only a new run looks at the user's own data again."""
    values = _resolved(base)
    return values if given is None else _with_enough_clients(with_own_data(values, given), given)


def with_own_data(values: Mapping[str, Any], given: Collection[str]) -> Mapping[str, Any]:
    """Return the values with the facts of the run's own data and its number of clients.

    The keys that the user has `given` are not changed.
    """
    if values["dataset"].get("name") not in OWN_DATA:
        return values
    from data.look import completed

    spec = build(DatasetSpec, values["dataset"], "dataset")
    try:
        known = completed(spec)
        clients = _clients(known, given, values)
    except DataError as error:
        raise ConfigError(f"dataset: {error}") from error
    values = {**values, "dataset": {**asdict(known), "clients": clients}}
    if clients == spec.clients:
        return values
    return {**values, "fleet": {**values["fleet"], "clients": clients}}


def _clients(spec: DatasetSpec, given: Collection[str], values: Mapping[str, Any]) -> int:
    """Return the number of clients: the data's, unless the user gave one or named nodes."""
    if not spec.is_natural:
        return spec.clients
    from data.own_source import own_owners
    from data.partition import require_clients

    owners = own_owners(spec)
    chosen = bool({"fleet.clients", "dataset.clients"} & {*given}) or values["fleet"].get("nodes")
    if chosen:
        require_clients("fleet.clients", spec.clients, owners)
    return spec.clients if chosen else len(owners.names)


def _with_enough_clients(values: Mapping[str, Any], given: Collection[str]) -> Mapping[str, Any]:
    """Lower clients_per_round to the fleet's clients, unless it was given."""
    asked, there = values["clients_per_round"], values["fleet"].get("clients")
    known = isinstance(asked, int) and isinstance(there, int) and 1 <= there < asked
    if not known or "clients_per_round" in given:
        return values
    return {**values, "clients_per_round": there}


def _checked_config(values: Mapping[str, Any]) -> Config:
    """Return the configuration of plain values; its strategy has its method's own settings."""
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
    """Give a new run's texts the tokenizer of its pre-trained weights."""
    weights, data = config.model.weights, config.dataset
    if weights is None or data.holds != "tokens" or data.tokenizer is not None:
        return config
    from server_app.config.weights import tokenizer_of

    return replace(config, dataset=replace(data, tokenizer=tokenizer_of(weights)))


def plain(config: Config) -> dict[str, Any]:
    """Return the configuration as plain values, by the keys that overrides have."""
    values = asdict(config)
    for part in ("model", "aggregation"):
        values[part] |= values[part].pop(EXTRA)
    return {key: lists(value) for key, value in values.items()}


def dump(config: Config) -> str:
    """Return the configuration as YAML; `load` of it returns an equal one.

    Other characters than ASCII are escaped, unlike by `OmegaConf.to_yaml`: YAML takes some of them
    for the end of a line.
    """
    dumper = get_omega_conf_dumper()  # quotes texts that look like numbers
    text: str = yaml.dump(plain(config), Dumper=dumper, allow_unicode=False, sort_keys=False)
    return text


def load(file: Path) -> Config:
    """Return the configuration that a run was started with; its plugins are loaded."""
    saved = read(file)
    try:
        return _checked_config(_resolved(saved))
    except ConfigError as error:
        raise ConfigError(in_file(file, error)) from error


def _saved(resume: str, chosen: list[Override]) -> DictConfig:
    for override in chosen:
        raise ConfigError(
            f"{override.key}={override.value} with resume={resume}: "
            f"a run goes on with its own {override.key}; leave it out"
        )
    try:
        directory = run_directory(Path(resume))
    except ConfigError as error:
        raise ConfigError(f"resume: {error}") from error
    return read(directory / CONFIG_FILE)


def _resolved(config: DictConfig) -> Mapping[str, Any]:
    try:
        values: Any = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{error.full_key}: {str(error).splitlines()[0]}") from error
    return {str(key): value for key, value in values.items()}
