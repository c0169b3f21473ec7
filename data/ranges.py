"""Ranges of numeric settings and options: one check for the command line and the configuration.

A setting's range stands beside it, in its type: `rounds: Annotated[int, Range(1, 999_999)] = 10`.
Numbers whose type says nothing are within `ANY_WHOLE` or `ANY_NUMBER`: finite, and not absurd.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class Range:
    """The numbers from `least` to `most`; without `least` itself where it is to be `above`."""

    least: float
    most: float
    above: bool = False

    def __contains__(self, value: float) -> bool:
        if isinstance(value, float) and not math.isfinite(value):
            return False
        within = value > self.least if self.above else value >= self.least
        return within and value <= self.most

    def __str__(self) -> str:
        least = f"above {_shown(self.least)}, up to" if self.above else f"{_shown(self.least)} to"
        return f"{least} {_shown(self.most)}"

    def check(self, name: str, value: Number) -> Number:
        """Return a value, or raise `ValueError` if it is not in the range."""
        if value not in self:
            raise ValueError(f"{name} is {brief(value)}: expected {self}")
        return value


ANY_WHOLE = Range(-(2**63) + 1, 2**63 - 1)
ANY_NUMBER = Range(-1e18, 1e18)
SEED = Range(0, 2**63 - 1)
ROUNDS = Range(1, 999_999)
"""Names of checkpoints have six digits."""
CLIENTS = Range(1, 1_000_000)
SHARE = Range(0, 1)
THREADS = Range(1, 4096)
"""Cores, workers, jobs: of one machine."""
SAMPLES = Range(1, 2**31 - 1)
"""Examples, batches and steps."""
SIZE = Range(1, 2**20)
"""Channels, pixels of a side, tokens, steps of a series, classes."""


def ranges_of(hint: Any) -> Iterator[Range]:
    """Yield the range that a type has, also of the items of a tuple, and beside None."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        yield from (each for each in arguments[1:] if isinstance(each, Range))
        yield from ranges_of(arguments[0])
    elif origin in (Union, UnionType, tuple):
        for each in arguments:
            yield from ranges_of(each)


def brief(value: float) -> str:
    """Return a number as a text that fits into a line, however many digits it has."""
    if isinstance(value, int) and abs(value) >= 10**20:
        digits = int(math.log10(abs(value)))
        return f"about {'-' if value < 0 else ''}1e+{digits}"
    return str(value)


def _shown(limit: float) -> str:
    return f"{limit:,}" if isinstance(limit, int) else f"{limit:g}"
