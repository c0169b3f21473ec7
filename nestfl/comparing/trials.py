"""Expands overrides that list values into the trials of a comparison.

`strategy=scalefl,heterofl seed=range(0,3) rounds=30` are six trials, as in Hydra's multirun. With
`scalefl.beta=0.1,0.5` they are nine: that is `strategy.beta` for the trials of scalefl only.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from pathlib import Path

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from server_app.config.choices import choices as choices_of
from server_app.config.choices import groups, settings_by_name
from server_app.config.overrides import with_absolute_paths
from server_app.config.typed import ConfigError, choose_from
from server_app.report.grouping import in_short, own_option

STRATEGY = "strategy"
SEED = "seed"
"""The key over whose values results are averaged."""
OWN_KEYS = ("output", "name", "engine")
"""Keys of the comparison itself, with the same value for all its runs."""
MOST_TRIALS = 1000
"""Most runs of a comparison."""
LONGEST_NAME = 120
"""Most characters of a trial's name: file systems allow some 255."""


@dataclass(frozen=True, eq=False)
class Trial:
    """One run of a comparison."""

    choices: Mapping[str, str]
    """The value of each key with several values, in the order in which the keys were given; then
    those of keys for its strategy only, such as nefl.beta."""
    fixed: tuple[str, ...] = ()
    """The other overrides."""

    @property
    def overrides(self) -> list[str]:
        """All overrides of the run; their paths do not depend on the working directory."""
        options = {key: own_option(key, self.choices) for key in self.choices}
        keys = {key: f"{STRATEGY}.{own}" if own else key for key, own in options.items()}
        chosen = (f"{keys[key]}={value}" for key, value in self.choices.items())
        return with_absolute_paths(Path.cwd(), [*self.fixed, *chosen])

    @property
    def name(self) -> str:
        """Folder name of the trial, the same in whatever order its keys were given."""
        keys = sorted(self.choices, key=lambda key: (key == SEED, key))
        plain = "_".join(f"{key}-{self.choices[key]}" for key in keys)
        name = re.sub(r"[^\w.-]+", "-", plain)
        return name if name == plain and len(name) <= LONGEST_NAME else _shortened(name, plain)

    @property
    def group(self) -> Mapping[str, str]:
        """Its choices without the seed; runs with the same ones are averaged."""
        return {key: value for key, value in self.choices.items() if key != SEED}

    @property
    def seed(self) -> str | None:
        """The chosen seed, if seeds are compared."""
        return self.choices.get(SEED)

    def __str__(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.choices.items())


def expand(overrides: Sequence[str]) -> list[Trial]:
    """Return the trials of overrides: for each seed all combinations of the other values."""
    values: dict[str, list[str]] = {}
    for text in overrides:
        key, equals, _ = text.partition("=")
        if not equals or not key:
            raise ConfigError(f"{text!r} is no override: expected key=value or key=value,value")
        if key == "resume":
            raise ConfigError(f"{text}: a comparison goes on by itself; leave it out")
        if key in values:
            raise ConfigError(f"{key} is given twice: list its values in one, {key}=A,B")
        values[key] = _values(text)
    own = _own(values)
    shared = {key: each for key, each in values.items() if not any(key in o for o in own.values())}
    if (count := math.prod(map(len, shared.values()))) > MOST_TRIALS:
        raise ConfigError(
            f"{count:,} combinations of {', '.join(k for k, v in shared.items() if len(v) > 1)}: "
            f"expected {MOST_TRIALS:,} runs at most; list fewer values"
        )
    several = {key: choices for key, choices in shared.items() if len(choices) > 1}
    for key in OWN_KEYS:
        if key in several:
            raise ConfigError(f"{key} has several values: expected one for the whole comparison")
    if not several:
        raise ConfigError(
            "there is nothing to compare: expected a key with several values, such as "
            "strategy=scalefl,heterofl or seed=0,1,2"
        )
    fixed = tuple(f"{key}={choices[0]}" for key, choices in shared.items() if key not in several)
    keys = sorted(several, key=lambda key: key != SEED)  # seeds vary slowest: early tables are fair
    found = []
    for combination in product(*(several[key] for key in keys)):
        chosen = dict(zip(keys, combination, strict=True))
        options = own.get(chosen.get(STRATEGY, ""), {})
        for values_of_options in product(*options.values()):
            more = dict(zip(options, values_of_options, strict=True))
            found.append(Trial({key: chosen[key] for key in several} | more, fixed))
    return found


def _own(values: Mapping[str, list[str]]) -> dict[str, dict[str, list[str]]]:
    """Return the values of keys for one strategy only, by strategy."""
    compared, own = values.get(STRATEGY, []), dict[str, dict[str, list[str]]]()
    for key in values:
        name, _, option = key.partition(".")
        if not option or name in groups():
            continue
        if name not in compared:
            _check_group(key, name, compared)
        elif len(compared) == 1 or len(values.get(f"{STRATEGY}.{option}", [])) > 1:
            raise ConfigError(
                f"{key} is for one of several strategies: give {STRATEGY}.{option} for all that "
                "are compared, or else an option of each by itself"
            )
        else:
            own.setdefault(name, {})[key] = _as_listed(key, values[key])
    return own


def _check_group(key: str, name: str, compared: Sequence[str]) -> None:
    """Raise unless a key's first part is a part of the configuration."""
    known = {each.partition(".")[0] for each in settings_by_name().values()}
    if name in choices_of(STRATEGY):
        told = ", ".join(compared) or f"none, give {STRATEGY}={name},..."
        raise ConfigError(f"{key}: expected one of the strategies that are compared: {told}")
    if name not in known:
        raise ConfigError(
            f"{key}: no key {name!r}; {choose_from(name, [*compared, *sorted(known)])}"
        )


def short_name(choices: Mapping[str, str]) -> str:
    """Return choices in short form."""
    names = {key: own_option(key, choices) or key for key in choices}
    return " ".join(in_short(names[key], value) for key, value in choices.items())


def comparison_name(trials: Sequence[Trial]) -> str:
    """Return the folder's default name.

    It depends on the compared keys and the common overrides. Values, and options of one strategy,
    do not change it: a comparison with one more seed, strategy or such option continues in the same
    folder.
    """
    first = trials[0].choices
    keys = sorted(key for key in first if not own_option(key, first))
    other = sorted(text for text in trials[0].fixed if text.partition("=")[0] not in OWN_KEYS)
    digest = hashlib.sha256("\n".join([*keys, "", *other]).encode()).hexdigest()[:8]
    return "-".join(["compare", *keys])[:LONGEST_NAME] + f"-{digest}"


def _values(text: str) -> list[str]:
    """Return the values that an override lists; one that Hydra cannot read is plain text."""
    key, _, value = text.partition("=")
    try:
        override = OverridesParser.create().parse_override(f"value={value}")
    except HydraException:
        return value.split(",")  # such as ~/a,~/b
    if not override.is_sweep_override():
        return [value]
    try:
        swept = islice(override.sweep_string_iterator(), MOST_TRIALS + 1)
        values = [_plain(each) for each in swept]
    except (HydraException, AttributeError, ValueError) as error:
        raise ConfigError(f"{text}: expected values, {key}=A,B, or range(0,3)") from error
    if len(values) > MOST_TRIALS:
        raise ConfigError(
            f"{key} lists more than {MOST_TRIALS:,} values: expected {MOST_TRIALS:,} runs at most"
        )
    repeated = sorted(value for value, times in Counter(values).items() if times > 1)
    if repeated:
        raise ConfigError(f"{key} lists {repeated[0]} twice: expected each value once")
    return values


def _as_listed(key: str, values: list[str]) -> list[str]:
    """Return a single value as it is written among others, since it names the run's folder."""
    listed = _values(f"{key}=choice({values[0]})") if len(values) == 1 else values
    return values if listed[0].startswith("choice(") else listed


def _plain(value: str | float) -> str:
    """Return a value as a user would type it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def same_value(one: str, other: str) -> bool:
    """Return whether two texts are the same value: 1e-3 and 0.001 are."""
    return bool(yaml.safe_load(one) == yaml.safe_load(other)) or _number(one) == _number(other)


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _shortened(name: str, unique: str) -> str:
    """Return a name that is short enough and still unique."""
    mark = f"-{hashlib.sha256(unique.encode()).hexdigest()[:8]}"
    return name[: LONGEST_NAME - len(mark)] + mark
