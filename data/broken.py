"""What is wrong with files, all of it at once: a file and a row each, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from data.catalog import DataError


class Broken(NamedTuple):
    """A file, or a row of one, that cannot be used."""

    place: str
    why: str

    def __str__(self) -> str:
        return f"{self.place}{self.why}"


class BrokenFilesError(DataError):
    """Some of the files or rows cannot be used; the first is told, and all are `broken`."""

    def __init__(self, broken: Sequence[Broken]) -> None:
        more = f"; and {len(broken) - 1} more, which `nestfl data` lists" if broken[1:] else ""
        super().__init__(f"{broken[0]}{more}")
        self.broken = tuple(broken)


def raise_if(broken: Sequence[Broken]) -> None:
    """Raise a `BrokenFilesError` if there is anything to tell."""
    if broken:
        raise BrokenFilesError(broken)
