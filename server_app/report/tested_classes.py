"""The newest test of a run that told classes apart, as the report shows it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from server_app.record.confusion import Confusion

Counts = Sequence[Sequence[int]]
"""How often which answer was given: by class, and by answer."""


@dataclass(frozen=True)
class ClassTest:
    """How many examples of each class there were, and how many of them each level has right."""

    names: Sequence[str]
    sizes: Sequence[int]
    right: Mapping[str, Sequence[int]]
    """By level."""
    held: Collection[str]
    """The levels that clients hold."""
    matrices: Mapping[str, Counts]
    """By level, where they are recorded."""

    @classmethod
    def of(
        cls, lines: Sequence[Any], names: Sequence[str], confusion: Confusion | None
    ) -> ClassTest | None:
        """Return the newest test in some rounds' lines; None where no classes are told apart.

        Matrices of another round are left out, and classes without names are numbered.
        """
        tested = (line for line in reversed(lines) if line.get("class_sizes"))
        line = next((line for line in tested if line.get("levels")), None)
        if line is None:
            return None
        sizes, levels = line["class_sizes"], line["levels"]
        number, matrices = len(sizes), dict[str, Counts]()
        right = {name: found for name, level in levels.items()
                 if len(found := level.get("right", ())) == number}  # fmt: skip
        if confusion is not None and confusion["round"] == line["round"]:
            matrices = {name: found for name, found in confusion["levels"].items()
                        if list(map(len, found)) == [number] * number}  # fmt: skip
        held = [name for name in right if "lack" not in levels[name]]
        known = list(names) if len(names) == number else list(map(str, range(number)))
        return cls(known, sizes, right, held, matrices) if right else None

    def share(self, level: str) -> list[float | None]:
        """Return a level's accuracy for each class; None where there was no example of it."""
        counts = zip(self.right[level], self.sizes, strict=True)
        return [count / size if size else None for count, size in counts]

    def means(self) -> list[float | None]:
        """Return the mean accuracy of the levels that clients hold, or else of all, by class."""
        levels = [level for level in self.right if level in self.held] or list(self.right)
        by_class = zip(*map(self.share, levels), strict=True)
        known = ([share for share in shares if share is not None] for shares in by_class)
        return [fmean(shares) if shares else None for shares in known]

    def alike(self, other: ClassTest) -> bool:
        """Return whether both tell of the same classes, levels and matrices."""
        return (self.names, *map(list, (self.right, self.matrices))) == (
            other.names,
            *map(list, (other.right, other.matrices)),
        )

    def __add__(self, other: ClassTest) -> ClassTest:
        """Return the test of both, which are alike."""
        return replace(
            self,
            sizes=_sums(self.sizes, other.sizes),
            right={name: _sums(own, other.right[name]) for name, own in self.right.items()},
            matrices={
                name: [_sums(*rows) for rows in zip(own, other.matrices[name], strict=True)]
                for name, own in self.matrices.items()
            },
        )


def _sums(one: Sequence[int], other: Sequence[int]) -> list[int]:
    return [a + b for a, b in zip(one, other, strict=True)]
