"""Read the JSON and YAML files of a run: bounded in size, depth and numbers, and checked by type.

A run's directory may come from another machine, or from a damaged disk. Every reader of such a
file goes through here, and every error is one line that names the file and the key:

    runs/mine/fleet.json cannot be read: clients.3.level is 'two': expected a whole number
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from io import BufferedReader
from pathlib import Path
from reprlib import Repr
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

import yaml

from plugins.regular_files import IrregularFileError, open_regular
from protocol.printable import printable

MOST_JSON, MOST_YAML = 2**25, 2**22
"""Bytes of a document. The largest of a run are the confusion matrices: some MB."""
MOST_DEPTH = 64
"""Nested lists and mappings; a run's own have less than 10."""
MOST_WHOLE = 2**63 - 1
"""Magnitude of a whole number."""
FINITE: Final = "finite"
"""Marks a `float` that is never null. Others may be: a diverged loss is written as null."""
NOT_NEGATIVE: Final = "not negative"
NOT_EMPTY: Final = "not empty"
"""Marks of an `int` that counts something, and of a list."""
LONGEST_REASON = 300

Check = Callable[[Any], None]


class DocumentError(ValueError):
    """A file that does not hold what it should, in one line that names it."""


class _WrongValueError(Exception):
    """A wrong value; each level of nesting adds its key on the way out."""

    def __init__(self, told: str) -> None:
        super().__init__(told)
        self.told, self.keys = told, list[str]()

    def __str__(self) -> str:
        return " ".join([".".join(reversed(self.keys)) or "the document", self.told])


def read_json(file: Path, hint: Any = Any, nan: bool = False) -> Any:
    """Return what a JSON file holds, of the type `hint`; `FileNotFoundError` where it is not there.

    With `nan`, numbers need not be finite.
    """
    return parse_json(_read(file, MOST_JSON), file, hint, nan)


def read_yaml(file: Path, hint: Any = Any) -> Any:
    """Return what a YAML file holds, of the type `hint`; no run writes aliases, so none is read."""
    data = _read(file, MOST_YAML)
    try:
        text = data.decode()
        _check_events(text)
        found = yaml.load(text, _loader())
    except (ValueError, yaml.YAMLError, _WrongValueError) as error:
        raise unreadable(file, error) from None
    return conforming(found, hint, file)


def read_lines(file: Path, hint: Any = Any) -> list[Any]:
    """Return the documents of a file of JSON lines; a last one that a kill cut short is left out.

    A file that is not there has none.
    """
    found = []
    try:
        for number, line in enumerate(lines_of(file), 1):
            found.append(parse_json(line, file, hint, line=number))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return found


def lines_of(file: Path) -> Iterator[bytes]:
    """Yield the whole lines of a regular file."""
    with _opened(file) as opened:
        while line := opened.readline(MOST_JSON + 1):
            if len(line) > MOST_JSON:
                raise unreadable(file, f"a line has more than {MOST_JSON} bytes")
            if line.endswith(b"\n"):
                yield line[:-1]


def parse_json(
    text: str | bytes, name: object, hint: Any = Any, nan: bool = False, line: int | None = None
) -> Any:
    """Return a JSON text as a value of the type `hint`; errors name the file, and its line."""
    place = "" if line is None else f"line {line}: "
    try:
        found = json.loads(text)
        _check_of(hint, nan)(found)
    except RecursionError:
        raise unreadable(name, f"{place}nested more than {MOST_DEPTH} deep") from None
    except (ValueError, _WrongValueError) as error:
        raise unreadable(name, f"{place}{error}") from None
    return found


def conforming(value: Any, hint: Any, name: object, nan: bool = False) -> Any:
    """Return a value as it is, or raise `DocumentError` with the key that is not as `hint` says.

    Hints are made of scalars, lists, mappings, unions, typed dictionaries and dataclasses. Lists
    stand for tuples, and texts of digits for keys that are numbers. A typed dictionary may have
    further keys: those of another version.
    """
    try:
        _check_of(hint, nan)(value)
    except _WrongValueError as error:
        raise unreadable(name, error) from None
    return value


def unreadable(name: object, why: object) -> DocumentError:
    """Return the error of a file that cannot be read, in one line."""
    reason = printable(" ".join(str(why).split()), LONGEST_REASON)
    return DocumentError(f"{name} cannot be read: {reason}")


def _opened(file: Path) -> BufferedReader:
    try:
        return open_regular(file)
    except IrregularFileError as error:
        raise DocumentError(str(error)) from None


def _read(file: Path, most: int) -> bytes:
    with _opened(file) as opened:
        found = opened.read(most + 1)
    if len(found) > most:
        raise unreadable(file, f"it has more than {most} bytes")
    return found


# --- YAML --------------------------------------------------------------------------------------

_STARTS = (yaml.MappingStartEvent, yaml.SequenceStartEvent)
_ENDS = (yaml.MappingEndEvent, yaml.SequenceEndEvent)


def _check_events(text: str) -> None:
    """Raise for aliases, which multiply, and for what is nested too deeply, before it is made."""
    depth = 0
    for event in yaml.parse(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        if isinstance(event, yaml.AliasEvent):
            raise _WrongValueError(f"has the alias *{event.anchor}: expected values in full")
        depth += isinstance(event, _STARTS) - isinstance(event, _ENDS)
        if depth > MOST_DEPTH:
            raise _WrongValueError(f"is nested more than {MOST_DEPTH} deep")


@cache
def _loader() -> Any:
    """Return a loader that reads numbers as OmegaConf writes them, and keys once each."""

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            for key in keys if len(set(keys)) < len(keys) else ():
                if keys.count(key) > 1:
                    raise yaml.constructor.ConstructorError(None, None, f"found {key!r} twice")
            return super().construct_mapping(node, deep=deep)

    # YAML 1.1 takes 1e-3 for a text: it asks for a point.
    number = re.compile(r"[-+]?[0-9]+(?:_[0-9]+)*(?:[eE][-+]?[0-9]+)$")
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", number, list("-+0123456789"))
    date = "tag:yaml.org,2002:timestamp"
    Loader.yaml_implicit_resolvers = {
        first: [each for each in resolvers if each[0] != date]
        for first, resolvers in Loader.yaml_implicit_resolvers.items()
    }
    return Loader


# --- types -------------------------------------------------------------------------------------

_SHOWN = Repr()
_SHOWN.maxstring = _SHOWN.maxlong = _SHOWN.maxother = 40


def _wrong(value: Any, expected: str) -> _WrongValueError:
    return _WrongValueError(f"is {_SHOWN.repr(value)}: expected {expected}")


@cache
def _check_of(hint: Any, nan: bool = False) -> Check:
    """Return what raises for a value that is not of a type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _marked(_check_of(arguments[0], nan), arguments[1:], nan)
    if origin in (Required, NotRequired):
        return _check_of(arguments[0], nan)
    if origin in (Union, UnionType):
        return _union([_check_of(each, nan) for each in arguments], arguments)
    if origin is Literal:
        return _literal(arguments)
    if is_typeddict(hint):
        return _record(hint, nan)
    if is_dataclass(hint):
        return _dataclass(hint, nan)
    if origin is tuple and arguments[-1:] != (...,):
        return _row([_check_of(each, nan) for each in arguments])
    if origin in (list, tuple, Sequence):
        return _list(_check_of(arguments[0], nan))
    if origin in (dict, Mapping):
        return _mapping(arguments[0], arguments[1], nan)
    if hint is float:
        return _any_float if nan else _float
    return _SCALARS.get(hint) or _anything(nan)


def _whole(value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong(value, "a whole number")
    if not -MOST_WHOLE <= value <= MOST_WHOLE:
        raise _WrongValueError(f"is a number of {value.bit_length()} bits: expected 64 at most")


def _finite(value: Any) -> None:
    if not isinstance(value, float):
        if not isinstance(value, int) or isinstance(value, bool):
            raise _wrong(value, "a number")
        _whole(value)
    elif not math.isfinite(value):
        raise _wrong(value, "a finite number")


def _float(value: Any) -> None:
    if value is not None:
        _finite(value)


def _any_float(value: Any) -> None:
    if not isinstance(value, float):
        _float(value)


def _of_type(kind: type, expected: str) -> Check:
    def check(value: Any) -> None:
        if not isinstance(value, kind):
            raise _wrong(value, expected)

    return check


_SCALARS: Mapping[Any, Check] = {
    bool: _of_type(bool, "true or false"),
    int: _whole,
    str: _of_type(str, "a text"),
    NoneType: _of_type(NoneType, "null"),
    dict: _of_type(dict, "names with values"),
}


def _marked(check_type: Check, marks: Sequence[Any], nan: bool) -> Check:
    if FINITE in marks:
        return check_type if nan else _finite

    def check(value: Any) -> None:
        check_type(value)
        if NOT_NEGATIVE in marks and value < 0:
            raise _wrong(value, "0 or more")
        if NOT_EMPTY in marks and not value:
            raise _wrong(value, "one at least")

    return check


def _literal(choices: Sequence[Any]) -> Check:
    def check(value: Any) -> None:
        if isinstance(value, (dict, list)) or value not in choices:
            raise _wrong(value, f"one of {', '.join(map(str, choices))}")

    return check


def _union(checks: Sequence[Check], hints: Sequence[Any]) -> Check:
    def check(value: Any) -> None:
        found = None
        for each, hint in zip(checks, hints, strict=True):
            try:
                each(value)
            except _WrongValueError as error:
                # Of a list the wrong item is told, and of a scalar that it is no null.
                found = error if found is None or hint is not NoneType else found
            else:
                return
        if found is not None:
            raise found

    return check


def _list(check_item: Check) -> Check:
    def check(value: Any) -> None:
        if not isinstance(value, (list, tuple)):
            raise _wrong(value, "a list")
        for place, item in enumerate(value):
            _under(str(place), check_item, item)

    return check


def _row(checks: Sequence[Check]) -> Check:
    def check(value: Any) -> None:
        if not isinstance(value, (list, tuple)) or len(value) != len(checks):
            raise _wrong(value, f"a list of {len(checks)}")
        for place, (each, item) in enumerate(zip(checks, value, strict=True)):
            _under(str(place), each, item)

    return check


def _mapping(key: Any, item: Any, nan: bool) -> Check:
    check_item, numbers = _check_of(item, nan), key is int

    def check(value: Any) -> None:
        if not isinstance(value, dict):
            raise _wrong(value, "names with values")
        for name, each in value.items():
            if numbers and not re.fullmatch(r"[0-9]{1,9}", str(name)):
                raise _wrong(name, "a whole number as the name")
            _under(str(name), check_item, each)

    return check


def _record(kind: Any, nan: bool) -> Check:
    hints = get_type_hints(kind, include_extras=True)
    # Of annotations that are texts, `__required_keys__` knows neither Required nor NotRequired.
    marks = {name: get_origin(hint) for name, hint in hints.items()}
    needed = [
        name
        for name, mark in marks.items()
        if mark is Required or (name in kind.__required_keys__ and mark is not NotRequired)
    ]
    return _named({name: _check_of(hint, nan) for name, hint in hints.items()}, needed, nan)


def _dataclass(kind: Any, nan: bool) -> Check:
    hints = get_type_hints(kind, include_extras=True)
    needed = [
        each.name
        for each in fields(kind)
        if each.default is MISSING and each.default_factory is MISSING
    ]
    named = _named({each.name: _check_of(hints[each.name], nan) for each in fields(kind)}, needed)

    def check(value: Any) -> None:
        named(value)
        for name in value:
            if name not in hints:
                raise _WrongValueError(f"has {_SHOWN.repr(name)}, which is unknown")

    return check


def _named(checks: Mapping[str, Check], needed: Sequence[str], nan: bool = False) -> Check:
    other = _anything(nan)

    def check(value: Any) -> None:
        if not isinstance(value, dict):
            raise _wrong(value, "names with values")
        for name in needed:
            if name not in value:
                raise _WrongValueError(f"has no {name}")
        for name, item in value.items():
            _under(str(name), checks.get(name, other), item)

    return check


@cache
def _anything(nan: bool) -> Check:
    """Return what raises for what is nested too deeply, and for numbers beyond all bounds.

    Where NaN may be, so may any number: these are values that nothing reads.
    """
    number = _of_type(object, "anything") if nan else _float

    def check(value: Any, depth: int = 0) -> None:
        if value is None or isinstance(value, (str, bool)):
            return
        if depth > MOST_DEPTH:
            raise _WrongValueError(f"is nested more than {MOST_DEPTH} deep")
        if isinstance(value, dict):
            for name, item in value.items():
                _under(str(name), lambda each: check(each, depth + 1), item)
        elif isinstance(value, list):
            for place, item in enumerate(value):
                _under(str(place), lambda each: check(each, depth + 1), item)
        elif isinstance(value, (int, float)):
            number(value)
        else:
            raise _wrong(value, "a text, a number, a list, or names with values")

    return check


def _under(name: str, check: Check, value: Any) -> None:
    try:
        check(value)
    except _WrongValueError as error:
        error.keys.append(name)
        raise
