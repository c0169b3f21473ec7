"""Builds frozen dataclasses from plain values, with errors that name the key."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from data.ranges import ANY_NUMBER, ANY_WHOLE, Range, brief, ranges_of

Settings = TypeVar("Settings")
EXTRA = "options"
"""The field of a dataclass, if it has one, that takes the keys that are no fields."""


class ConfigError(ValueError):
    """A configuration that cannot be run; one sentence that names the key."""


def build(cls: type[Settings], values: Mapping[str, Any], path: str = "") -> Settings:
    """Return a dataclass of checked values; `path` is the key that holds it."""
    hints = get_type_hints(cls, include_extras=True)
    values = _gather_extra(hints, values)
    reject_unknown(path, values, list(hints))
    given = {
        name: _checked(hints[name], value, f"{path}.{name}" if path else name)
        for name, value in values.items()
    }
    for field in fields(cls):  # type: ignore[arg-type]
        optional = field.default is not MISSING or field.default_factory is not MISSING
        if field.name not in given and not optional:
            raise ConfigError(f"{f'{path}.' if path else ''}{field.name} is missing")
    try:
        made = cls(**given)  # first: its own checks say more
        for name, value in given.items():
            _check_ranges(name, value, tuple(ranges_of(hints[name])))
    except ValueError as error:
        raise ConfigError(f"{path}: {error}" if path else str(error)) from error
    return made


def _check_ranges(name: str, value: Any, ranges: Sequence[Range]) -> None:
    """Raise `ValueError` for a number outside its field's range; of several numbers for any."""
    if isinstance(value, tuple):
        for each in value:
            _check_ranges(name, each, ranges)
    elif value is not None:
        for each in ranges:
            each.check(name, value)


def reject_unknown(
    path: str,
    given: Mapping[str, Any],
    known: Sequence[str],
    elsewhere: Mapping[str, str] = {},
) -> None:
    """Raise for the first unknown key; the error lists the known ones.

    `elsewhere` has the full keys of the same name in other places.
    """
    for name in given:
        if name not in known:
            where = f" in {path}" if path else ""
            choices = choose_from(name, sorted(known), elsewhere.get(name))
            raise ConfigError(f"no key {name!r}{where}; {choices}")


def choose_from(given: object, choices: Sequence[str], meant: str | None = None) -> str:
    """Return the choices for an error, with the intended one: `meant`, or the most similar."""
    meant = meant or next(iter(get_close_matches(str(given), choices, n=1)), None)
    listed = f"hoose from {', '.join(choices)}"
    return f"did you mean {meant}? C{listed}" if meant else f"c{listed}"


def _gather_extra(hints: Mapping[str, Any], values: Mapping[str, Any]) -> Mapping[str, Any]:
    if EXTRA not in hints:
        return values
    fixed = {name: value for name, value in values.items() if name in hints and name != EXTRA}
    extra = {name: value for name, value in values.items() if name not in hints}
    return fixed | {EXTRA: extra}


def _checked(hint: Any, value: Any, path: str, limits: Range | None = None) -> Any:
    limits = next(ranges_of(hint), limits)
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) in (Union, UnionType):
        if value is None and NoneType in get_args(hint):
            return None
        (hint,) = (choice for choice in get_args(hint) if choice is not NoneType)
    if is_dataclass(hint):
        if isinstance(value, hint):  # type: ignore[arg-type]
            return value
        if not isinstance(value, Mapping):
            raise ConfigError(f"{path}: expected settings, got {value!r}")
        return build(hint, value, path)  # type: ignore[arg-type]
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            choices = choose_from(value, get_args(hint))
            raise ConfigError(f"unknown {path} {value!r}; {choices}")
        return value
    if get_origin(hint) is tuple:
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise ConfigError(f"{path}: expected a list such as [1,2], got {value!r}")
        return tuple(_checked(get_args(hint)[0], item, path, limits) for item in value)
    if hint in _SCALARS:
        return _scalar(hint, value, path, limits)
    _check_numbers(value, path)
    return value


def _check_numbers(value: Any, path: str) -> None:
    """Raise for extreme numbers in a value without a fixed type, such as a network's options."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            _check_numbers(each, f"{path.removesuffix(f'.{EXTRA}')}.{name}")
    elif isinstance(value, (list, tuple)):
        for each in value:
            _check_numbers(each, path)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        _scalar(type(value), value, path)


def _scalar(hint: type, value: Any, path: str, limits: Range | None = None) -> Any:
    description, fits = _SCALARS[hint]
    if not fits(value):
        raise ConfigError(f"{path}: expected {description}, got {value!r}")
    if hint in (int, float):
        absurd = ANY_WHOLE if hint is int else ANY_NUMBER
        if value not in absurd:
            part, _, name = path.rpartition(".")
            told = f"{name} is {brief(value)}: expected {limits or absurd}"
            raise ConfigError(f"{part}: {told}" if part else told)
    return hint(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    return _is_whole(value) or (isinstance(value, float) and math.isfinite(value))


_SCALARS: dict[type, tuple[str, Callable[[Any], bool]]] = {
    bool: ("true or false", lambda value: isinstance(value, bool)),
    int: ("a whole number", _is_whole),
    float: ("a number", _is_finite),
    str: ("text", lambda value: isinstance(value, str) or _is_whole(value)),
}
