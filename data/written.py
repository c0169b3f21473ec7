"""Classes and names as a CSV has them: what is written counts, not what it looks like to a reader.

A reader takes `01` for the number 1 in one file and for a text in another. But numbers that a
program wrote as `1.0`, since others were missing, are whole numbers, and `NA` among numbers is a
number that is missing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

MISSING = frozenset(
    {"", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"}
    | {"N/A", "NA", "NULL", "NaN", "n/a", "nan", "null"}
)
"""What stands for a number that is missing; among texts, all but the first are texts."""
WHOLE = re.compile(r"[-+]?[0-9]+")
NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
TRUTHS = {"true": "true", "false": "false", "1": "true", "0": "false"}

Written = Sequence[str | None]


def as_names(values: Written) -> list[str | None]:
    """Return the names in a column of texts: as written, None where one is missing."""
    found = [None if value is None else value.strip() for value in values]
    if all(value is None or value in MISSING or NUMBER.fullmatch(value) for value in found):
        return [None if value in MISSING else value for value in found]
    return [value or None for value in found]


def as_classes(values: Written) -> list[str | float | None]:
    """Return the classes in a column of texts; one of numbers has whole ones, and broken ones."""
    found = as_names(values)
    there = {value for value in found if value is not None}
    if there and all(NUMBER.fullmatch(value) for value in there):
        return [None if value is None else _number(value) for value in found]
    if there and all(value.lower() in TRUTHS or value in MISSING for value in there):
        return [TRUTHS.get((value or "").lower()) for value in found]
    return list(found)


def _number(text: str) -> str | float:
    """Return a whole number as it is written; a float of a whole value becomes one."""
    return text if WHOLE.fullmatch(text) else float(text)
