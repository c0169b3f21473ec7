"""Reads the keys of a file of conf/, with their values and comments."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

GLOBAL = "# @package _global_"
"""First line of a file that sets keys of the whole configuration instead of its group's."""
DEFAULTS = "defaults"


@dataclass(frozen=True)
class Key:
    """A key; nested keys have dots, as in overrides."""

    name: str
    value: str
    """The value as written in the file; empty for a key that holds others."""
    comment: str
    """The comment behind the value, or else the one above the key."""


@dataclass(frozen=True)
class ConfFile:
    """A file of conf/."""

    path: Path
    comment: str
    """The comment in its first lines."""
    is_global: bool
    """True if its keys are those of the whole configuration."""
    defaults: list[Any]
    """Hydra's defaults list: the files below it, and its choices of other groups."""
    keys: list[Key]

    @property
    def name(self) -> str:
        """Name of the file in overrides."""
        return self.path.stem

    @property
    def bases(self) -> list[str]:
        """The files of its group below this one."""
        plain = [each for each in self.defaults if isinstance(each, str) and each != "_self_"]
        return [each.partition("@")[0] for each in plain]

    @property
    def chosen(self) -> dict[str, str]:
        """Its choices of other groups."""
        pairs = [pair for each in self.defaults if isinstance(each, dict) for pair in each.items()]
        return {group.removeprefix("override ").lstrip("/"): str(choice) for group, choice in pairs}


def read(path: Path) -> ConfFile:
    """Return the content of a file of conf/."""
    text = path.read_text(encoding="utf-8")
    lines, root = text.splitlines(), yaml.compose(text)
    keys = _keys(root, "", text) if isinstance(root, yaml.MappingNode) else []
    return ConfFile(
        path,
        _opening(lines),
        text.startswith(GLOBAL),
        (yaml.safe_load(text) or {}).get(DEFAULTS) or [],
        [key for key in keys if key.name != DEFAULTS],
    )


def _keys(node: yaml.MappingNode, prefix: str, text: str) -> list[Key]:
    """Return the keys of a mapping; one that holds others is included only if it has a comment."""
    found, lines = [], text.splitlines()
    for key, value in node.value:
        name = f"{prefix}{key.value}"
        at = key.start_mark
        comment = _behind(lines, at.line, at.column) or _above(lines, at.line, at.column)
        holds_others = isinstance(value, yaml.MappingNode) and value.value
        if comment or not holds_others:
            written = text[value.start_mark.index : value.end_mark.index]
            found.append(Key(name, "" if holds_others else written, comment))
        if holds_others:
            found += _keys(value, f"{name}.", text)
    return found


def _behind(lines: list[str], line: int, column: int) -> str:
    """Return the comment behind a key's value, with the lines on which it continues."""
    behind = re.search(r"\s#\s.*", lines[line])
    if behind is None:
        return ""
    told = [behind.group()]
    for following in lines[line + 1 :]:
        stripped = following.lstrip()
        if not stripped.startswith("#") or len(following) - len(stripped) <= column:
            break
        told.append(stripped)
    return _joined(told)


def _above(lines: list[str], line: int, column: int) -> str:
    """Return the comment above a key, unless it is the file's opening comment."""
    start = line
    while start > 0 and re.match(rf" {{{column}}}#", lines[start - 1]):
        start -= 1
    return _joined(lines[start:line]) if start > 0 else ""


def _opening(lines: list[str]) -> str:
    """Return the comment in a file's first lines."""
    told = []
    for line in lines:
        if not line.startswith("#"):
            break
        if line != GLOBAL:
            told.append(line)
    return _joined(told)


def _joined(lines: list[str]) -> str:
    return " ".join(line.strip().lstrip("#").strip() for line in lines)
