"""Classes and names as a CSV has them: what is written counts, not what it looks like to a reader.

A reader takes `01` for the number 1 in one file and for a text in another. But numbers that a
program wrote as `1.0`, since others were missing, are whole numbers, and `NA` among numbers is a
number that is missing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from decimal import Decimal

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
    """Return the names in a column of texts: as written, None where one is missing.

    Among numbers alone, one that is whole as `1.0` is has the name of the whole number.
    """
    found = [None if value is None else value.strip() for value in values]
    if all(value is None or value in MISSING or NUMBER.fullmatch(value) for value in found):
        return [None if value is None or value in MISSING else _number(value) for value in found]
    return [value or None for value in found]


def as_classes(values: Written, known: Collection[str] = ()) -> list[str | float | None]:
    """Return the classes in a column of texts; one of numbers has whole ones, and broken ones.

    What is written as one of the `known` classes is that class: `NA` may be one, though a column
    of it alone has none that it could tell by itself.
    """
    told, known = _told(as_names(values)), frozenset(known)
    written = [None if value is None else value.strip() for value in values]
    return [text if text in known else value for text, value in zip(written, told, strict=True)]


def _told(names: list[str | None]) -> list[str | float | None]:
    """Return the classes that names tell by themselves."""
    there = {name for name in names if name is not None}
    if there and all(NUMBER.fullmatch(name) for name in there):
        return [name if name is None or WHOLE.fullmatch(name) else float(name) for name in names]
    if there and all(name.lower() in TRUTHS or name in MISSING for name in there):
        return [TRUTHS.get((name or "").lower()) for name in names]
    return list(names)


def _number(text: str) -> str:
    """Return a number as it is written, but for a whole one with a point: that is `1`."""
    if WHOLE.fullmatch(text) or not math.isfinite(float(text)):
        return text
    number = Decimal(text)
    return str(int(number)) if number == number.to_integral_value() else text
