"""The keys of a file of conf/, with their values and with what its comments say of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

GLOBAL = "# @package _global_"
"""The first line of a file that sets keys of the whole configuration, not of its group alone."""
DEFAULTS = "defaults"


@dataclass(frozen=True)
class Key:
    """A key, with dots where it is nested, as an override names it."""

    name: str
    value: str
    """As the file has it; empty for a key that holds others."""
    comment: str
    """What stands behind it, or above it where nothing does."""


@dataclass(frozen=True)
class ConfFile:
    """A file of conf/."""

    path: Path
    comment: str
    """What its first lines say of it."""
    is_global: bool
    """Whether its keys are those of the whole configuration."""
    defaults: list[Any]
    """What it is made on top of, and what it chooses besides: Hydra's list."""
    keys: list[Key]

    @property
    def name(self) -> str:
        """What an override chooses it by."""
        return self.path.stem

    @property
    def bases(self) -> list[str]:
        """The files of its group that it is made on top of."""
        plain = [each for each in self.defaults if isinstance(each, str) and each != "_self_"]
        return [each.partition("@")[0] for each in plain]

    @property
    def chosen(self) -> dict[str, str]:
        """What it chooses of other groups."""
        pairs = [pair for each in self.defaults if isinstance(each, dict) for pair in each.items()]
        return {group.removeprefix("override ").lstrip("/"): str(choice) for group, choice in pairs}


def read(path: Path) -> ConfFile:
    """Return what a file of conf/ says."""
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
    """Return the keys of a mapping; one that holds others only where something is said of it."""
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
    """Return the comment behind a key's value, with the lines on which it goes on."""
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
    """Return the comment above a key, unless it is the file's opening."""
    start = line
    while start > 0 and re.match(rf" {{{column}}}#", lines[start - 1]):
        start -= 1
    return _joined(lines[start:line]) if start > 0 else ""


def _opening(lines: list[str]) -> str:
    """Return what a file's first lines say."""
    told = []
    for line in lines:
        if not line.startswith("#"):
            break
        if line != GLOBAL:
            told.append(line)
    return _joined(told)


def _joined(lines: list[str]) -> str:
    return " ".join(line.strip().lstrip("#").strip() for line in lines)
