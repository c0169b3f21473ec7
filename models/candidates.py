"""The architectures that clients may choose from: blocks and width of each stage (FedFA)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from models.slicing import Rounding, Slice

Choices = tuple[tuple[float, ...], ...]
"""Choices for each stage, the smallest first."""


@dataclass(frozen=True)
class Candidates:
    """The choices for each stage; the largest blocks and widths are the full network's."""

    blocks: tuple[tuple[int, ...], ...]
    """Numbers of blocks that each stage may keep, ascending."""
    widths: Choices
    """Shares of its channels that each stage may keep, ascending."""
    rounding: Rounding = "floor"

    def __post_init__(self) -> None:
        if len(self.blocks) != len(self.widths) or not self.blocks:
            raise ValueError(
                f"candidates have blocks for {len(self.blocks)} stages and widths for "
                f"{len(self.widths)}: expected as many of each"
            )
        for what, stages in (("blocks", self.blocks), ("widths", self.widths)):
            for stage, choices in enumerate(stages, 1):
                if not choices or list(choices) != sorted(set(choices)) or choices[0] <= 0:
                    raise ValueError(
                        f"{what} of stage {stage} are {list(choices)}: expected to rise from above "
                        "0, each once"
                    )

    @classmethod
    def of_channels(
        cls, blocks: Sequence[Sequence[int]], channels: Sequence[Sequence[int]]
    ) -> Candidates:
        """Return candidates with widths given as numbers of channels, the full one last."""
        shares = tuple(tuple(each / stage[-1] for each in stage) for stage in channels)
        return cls(tuple(map(tuple, blocks)), shares)

    def only(self, kind: str) -> Candidates:
        """Return candidates that differ in `depth`, `width` or `both`; the rest is the smallest."""
        if kind not in ("depth", "width", "both"):
            raise ValueError(f"unknown kind {kind!r}; choose from depth, width, both")
        least_blocks = tuple(stage[:1] for stage in self.blocks)
        least_widths = tuple(stage[:1] for stage in self.widths)
        return replace(
            self,
            blocks=least_blocks if kind == "width" else self.blocks,
            widths=least_widths if kind == "depth" else self.widths,
        )

    @property
    def smallest(self) -> Slice:
        """The smallest architecture."""
        return self._slice([s[0] for s in self.blocks], [s[0] for s in self.widths])

    @property
    def largest(self) -> Slice:
        """The largest architecture."""
        return self._slice([s[-1] for s in self.blocks], [s[-1] for s in self.widths])

    def __len__(self) -> int:
        return math.prod(map(len, (*self.blocks, *self.widths)))

    def __iter__(self) -> Iterator[Slice]:
        """Yield all architectures: there may be many."""
        for blocks in product(*self.blocks):
            for widths in product(*self.widths):
                yield self._slice(blocks, widths)

    def find(self, blocks: Sequence[int], widths: Sequence[float]) -> Slice | None:
        """Return the candidate with these blocks and widths, or None if there is none."""
        given: list[float] = [*blocks, *widths]
        choices: list[Sequence[float]] = [*self.blocks, *self.widths]
        if len(blocks) != len(self.blocks) or len(given) != len(choices):
            return None
        if not all(own in known for own, known in zip(given, choices, strict=True)):
            return None
        return self._slice(blocks, widths)

    def drawn(self, chance: np.random.Generator) -> Slice:
        """Return a random candidate."""
        return self._slice(
            [stage[chance.integers(len(stage))] for stage in self.blocks],
            [stage[chance.integers(len(stage))] for stage in self.widths],
        )

    def changed(self, given: Slice, chance: np.random.Generator) -> Slice:
        """Return a candidate in which one number with a choice is drawn anew."""
        assert given.blocks is not None
        assert isinstance(given.width, tuple)
        own: list[float] = [*map(len, given.blocks), *given.width]
        choices: list[Sequence[float]] = [*self.blocks, *self.widths]
        free = [place for place, each in enumerate(choices) if len(each) > 1]
        if free:
            place = free[chance.integers(len(free))]
            others = [each for each in choices[place] if each != own[place]]
            own[place] = others[chance.integers(len(others))]
        stages = len(self.blocks)
        return self._slice([int(each) for each in own[:stages]], own[stages:])

    def _slice(self, blocks: Sequence[int], widths: Sequence[float]) -> Slice:
        kept = tuple(tuple(range(number)) for number in blocks)
        return Slice(width=tuple(widths), blocks=kept, rounding=self.rounding)
