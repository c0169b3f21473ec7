"""A text data set that needs no download: docstrings, to be told apart by their library."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import numpy as np

from data.catalog import DataError, TextFacts
from data.text_formats import Texts

FEWEST_WORDS = 6
PER_LIBRARY = 600
"""So many are read; the few that occur twice are kept once."""
DISTRIBUTIONS = {"sklearn": "scikit-learn"}
"""The names by which libraries are installed, where that is not the imported one."""


def read_docstrings(facts: TextFacts) -> Texts:
    """Read as many texts of each library, which are the data set's classes."""
    texts: list[str] = []
    labels: list[int] = []
    for label, library in enumerate(facts.classes):
        found = dict.fromkeys(islice(_paragraphs(library), PER_LIBRARY))
        texts += found
        labels += [label] * len(found)
    return Texts(texts, np.array(labels))


def versions(facts: TextFacts) -> list[str]:
    """Return the versions that the texts depend on."""
    return [version(DISTRIBUTIONS.get(library, library)) for library in facts.classes]


def _paragraphs(library: str) -> Iterator[str]:
    """Yield the first paragraph of each docstring of some length, as one line."""
    spec = find_spec(library)
    if spec is None or not spec.submodule_search_locations:
        raise DataError(f"the docstrings of {library} are not there: it is not installed")
    root = Path(spec.submodule_search_locations[0])
    paths = (file.relative_to(root).as_posix() for file in root.rglob("*.py"))
    for path in sorted((path for path in paths if "test" not in path), key=_mixed):
        for node in ast.walk(ast.parse((root / path).read_bytes())):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                first, *_ = (ast.get_docstring(node) or "").split("\n\n")
                if len(words := first.split()) >= FEWEST_WORDS:
                    yield " ".join(words)


def _mixed(path: str) -> str:
    """Return an order that depends on the names alone, and mixes the parts of a library."""
    return hashlib.sha256(path.encode()).hexdigest()
