"""Numbers of the configuration: each setting refuses values outside its range, by name."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import pytest

from server_app.config.composing import Config, ConfigError, compose, plain
from server_app.config.typed import build
from strategies.registry import METHODS, method

BAD = (math.nan, math.inf, -math.inf, 10**30, 1e30)
SIGNED = {"strength", "mean", "std"}
"""Settings that may be negative: std is refused below 0 for a data set of one's own."""


def _plain(hint: Any) -> Any:
    """Return a type without None and without its range."""
    if get_origin(hint) is Annotated:
        return _plain(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return _plain(next(each for each in get_args(hint) if each is not NoneType))
    return hint


def numbers_of(cls: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int]]:
    """Yield the paths of all numbers in a settings class, and how deep in lists each is."""
    for name, declared in get_type_hints(cls, include_extras=True).items():
        hint, depth = _plain(declared), 0
        while get_origin(hint) is tuple:
            hint, depth = _plain(get_args(hint)[0]), depth + 1
        if is_dataclass(hint) and not depth:
            yield from numbers_of(hint, (*path, name))
        elif hint in (int, float):
            yield (*path, name), depth


def changed(values: Any, path: tuple[str, ...], value: Any) -> Any:
    if not path:
        return value
    return {**values, path[0]: changed(values[path[0]], path[1:], value)}


def refused(cls: Any, values: Any, path: tuple[str, ...], depth: int, bad: float) -> None:
    value: Any = bad
    for _ in range(depth):
        value = [value]
    with pytest.raises(ConfigError, match=path[-1]) as error:
        build(cls, changed(values, path, value))
    assert len(str(error.value)) < 400
    assert "\n" not in str(error.value)


PARTS = [each for each in numbers_of(Config) if each[0][0] != "strategy"]


@pytest.fixture(scope="module")
def config() -> Config:
    return compose("strategy=decoupled")


@pytest.mark.parametrize(("path", "depth"), PARTS, ids=[".".join(each[0]) for each in PARTS])
def test_a_setting_refuses_numbers_beyond_its_range(
    config: Config, path: tuple[str, ...], depth: int
) -> None:
    values = {**plain(config), "strategy": config.strategy}
    negative = () if path[-1] in SIGNED else (-1,)
    for bad in (*BAD, *negative):
        refused(Config, values, path, depth, bad)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_method_s_settings_refuse_them_too(name: str) -> None:
    settings = method(name).Settings
    fleet = "cis_7" if name == "serving_rate" else "even"
    values = plain(compose(f"strategy={name} fleet={fleet}"))["strategy"]
    for path, depth in numbers_of(settings):
        for bad in (*BAD, -1):
            refused(settings, values, path, depth, bad)


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("rounds=99999999999999999999999", "rounds is about 1e+23: expected 1 to 999,999"),
        ("seed=99999999999999999999", "seed is 99999999999999999999: expected 0 to"),
        ("aggregation=norm_bound aggregation.times=.inf", "aggregation"),
        ("output=", "output is empty"),
    ],
)
def test_the_key_is_named(override: str, told: str) -> None:
    with pytest.raises(ConfigError, match=f"^{told.replace('+', '[+]')}"):
        compose(override)
