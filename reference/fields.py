"""Reads the fields of settings' dataclasses, whose values are keys of conf/."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

import griffe

from reference.source import find, is_ours, modules_of, settled

CONFIG = "server_app.config.composing.Config"
"""The dataclass of a configuration, without the methods' own settings."""
RANGED = re.compile(r"Annotated\[((?:[^\[\]]|\[[^\[\]]*\])*?), (?:Range\([^()]*\)|[A-Z]+)\]")
"""A type with a range (data/ranges.py)."""


@dataclass(frozen=True)
class Field:
    """A field of a dataclass that a key sets."""

    type: str
    told: str
    """Its docstring, in one line."""


@cache
def config_fields() -> dict[str, Field]:
    """Return the fields that all configurations have, by key."""
    return _fields(find(CONFIG), "")


@cache
def method_fields(name: str) -> dict[str, Field]:
    """Return the fields of a method's settings, by key; empty if no method has the name."""
    for module in (*modules_of("strategies.methods"), *modules_of("strategies")):
        for settings in module.classes.values():
            own_name = settings.members.get("name")
            if isinstance(own_name, griffe.Attribute) and str(own_name.value) == repr(name):
                return _fields(settings, "strategy.")
    return {}


def _fields(settings: griffe.Object, prefix: str) -> dict[str, Field]:
    """Return the fields of a dataclass, and of the dataclasses in them."""
    fields: dict[str, Field] = {}
    for name, member in settings.all_members.items():
        field = settled(member)
        if not isinstance(field, griffe.Attribute) or "property" in field.labels:
            continue
        held = _settings_in(field)
        if held is not None:
            fields |= _fields(held, f"{prefix}{name}.")
        told = " ".join(field.docstring.value.split()) if field.docstring else ""
        fields[f"{prefix}{name}"] = Field(_type_of(field), told)
    return fields


def _names_in(field: griffe.Attribute) -> list[griffe.ExprName]:
    """Return the names in a field's annotation that are nestfl's."""
    if not isinstance(field.annotation, griffe.Expr):
        return []
    names = [part for part in field.annotation.iterate() if isinstance(part, griffe.ExprName)]
    return [name for name in names if is_ours(name.canonical_path)]


def _settings_in(field: griffe.Attribute) -> griffe.Class | None:
    """Return the dataclass in a field; None if it holds none."""
    spelled = str(field.annotation).removesuffix(" | None")
    for name in _names_in(field):
        found = find(name.canonical_path)
        if isinstance(found, griffe.Class) and spelled == name.name:
            return found
    return None


def _type_of(field: griffe.Attribute) -> str:
    """Return a field's type without its range; a named `Literal` is replaced by its values."""
    spelled = RANGED.sub(r"\1", str(field.annotation))
    for name in _names_in(field):
        found = find(name.canonical_path)
        if isinstance(found, griffe.Attribute) and str(found.value).startswith("Literal["):
            spelled = spelled.replace(name.name, str(found.value))
    return spelled
