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
    """Where a run's numbers go besides its own directory; a tracker has some of these settings."""

    name: Literal["none", "wandb", "mlflow"] = "none"
    project: str = "nestfl"
    mode: Literal["online", "offline"] = "online"
    uri: str | None = None

    def check_installed(self) -> None:
        """Raise `ValueError` if the package that it takes is not here."""
        if self.name != "none" and find_spec(self.name) is None:
            raise ValueError(
                f"tracker={self.name} takes the package {self.name}, which is not installed: "
                f"pip install 'nestfl[{self.name}]'"
            )


@dataclass(frozen=True, kw_only=True)
class Config(Federation):
    """All that a run depends on: the federation, the method's settings, and where it is kept."""

    strategy: MethodSettings
    output: str
    name: str | None
    resume: str | None
    report: bool = True
    """Whether the run ends with a report: a page to look at."""
    tracker: TrackerConfig = field(default_factory=TrackerConfig)
    engine: Engine = "ray"
    """What `nestfl run` runs the app on: the weights are the same."""

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
        """What was chosen, in short."""
        return f"{self.strategy.name}-{self.model.name}-{self.dataset.name}"


class Composed(NamedTuple):
    """A configuration, and what was changed for it that nobody had asked for."""

    config: Config
    notes: tuple[str, ...] = ()


def compose(overrides: str | Iterable[str] = "") -> Config:
    """Return the configuration that overrides make, or raise `ConfigError` for the wrong one."""
    return compose_and_tell(overrides).config


def compose_and_tell(overrides: str | Iterable[str] = "") -> Composed:
    """Return the configuration that overrides make, and notes for the user."""
    base, given = _overridden(overrides)
    try:
        config = _built(base, given)
    except ConfigError:
        if given is None:
            load(run_directory(Path(str(base.resume))) / CONFIG_FILE)  # names it, if that is wrong
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
    """Return the data set of the configuration that overrides make, whatever trains on it.

    Without a look at data of one's own, what only its files tell is left open.
    """
    base, given = _overridden(overrides)
    values = _completed(base, given if look else None)
    return _dataset(values, _strategy(values))


def _overridden(overrides: str | Iterable[str]) -> tuple[DictConfig, Collection[str] | None]:
    """Return what the overrides make of conf/ or a saved run, and of a new run their keys."""
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
    return values if given is None else _with_enough_clients(with_own_data(values, given), given)


def with_own_data(values: Mapping[str, Any], given: Collection[str]) -> Mapping[str, Any]:
    """Return the values with the facts of the run's own data, and the clients that it has.

    The keys that were `given` by whoever starts the run are not changed.
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
    """Return the number of clients: that of the data, unless one was given or nodes were named."""
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
    """Return the values with no more clients in a round than the fleet has, unless it was asked."""
    asked, there = values["clients_per_round"], values["fleet"].get("clients")
    known = isinstance(asked, int) and isinstance(there, int) and 1 <= there < asked
    if not known or "clients_per_round" in given:
        return values
    return {**values, "clients_per_round": there}


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


def plain(config: Config) -> dict[str, Any]:
    """Return the configuration as plain values, by the keys that overrides have."""
    values = asdict(config)
    for part in ("model", "aggregation"):
        values[part] |= values[part].pop(EXTRA)
    return {key: lists(value) for key, value in values.items()}


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
