"""Reads the project's packages from their source, without importing them."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path

import griffe

PROJECT = Path(__file__).resolve().parents[1]


@cache
def packages() -> tuple[str, ...]:
    """Return the names of nestfl's packages: the command line, and those of the app."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
    sent = project["tool"]["flwr"]["app"]["fab-include"]
    folders = {pattern.partition("/")[0] for pattern in sent}
    code = {name for name in folders if (PROJECT / name / "__init__.py").is_file()}
    return tuple(sorted({"nestfl", *code}))


@cache
def _collection() -> griffe.ModulesCollection:
    loader = griffe.GriffeLoader(search_paths=[PROJECT], allow_inspection=False)
    for name in packages():
        loader.load(name)
    return loader.modules_collection


def find(path: str) -> griffe.Object:
    """Return a module, a class or a function by its dotted path."""
    return settled(_collection()[path])


def is_ours(path: str) -> bool:
    """Return whether a dotted path is in these packages."""
    return path.partition(".")[0] in packages()


def settled(member: griffe.Object | griffe.Alias) -> griffe.Object:
    """Return the object that a name stands for, also if the name was imported."""
    return member.final_target if isinstance(member, griffe.Alias) else member


def modules_of(package: str) -> list[griffe.Module]:
    """Return the modules of a package by name, without subpackages."""
    found = find(package)
    modules = [each for name, each in sorted(found.modules.items()) if not name.startswith("_")]
    return [each for each in modules if not each.is_init_module]


def packages_below(package: str) -> list[str]:
    """Return a package, and those inside it."""
    below = [each.path for _, each in sorted(find(package).modules.items()) if each.is_init_module]
    return [package, *(name for inner in below for name in packages_below(inner))]


def first_sentence(found: griffe.Object) -> str:
    """Return the first paragraph of a docstring, in one line."""
    paragraph = found.docstring.value.split("\n\n")[0] if found.docstring else ""
    return " ".join(paragraph.split())
