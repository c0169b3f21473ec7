"""Labelled texts in memory, as tokens, served in batches padded to their longest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.catalog import TextFacts
from data.examples import Batches, Examples, Rows, taken


class TextSplit(NamedTuple):
    """Texts as tokens, padded with 0 to the longest of all, and their labels, row by row."""

    tokens: NDArray[np.int32]
    labels: NDArray[np.int64]


class TextSplits(NamedTuple):
    """The texts to deal out to clients, and those nobody trains on."""

    train: TextSplit
    test: TextSplit


@dataclass(frozen=True, eq=False)
class TextData(Examples):
    """Texts as 32-bit tokens, half of their size as what a network reads."""

    tokens: Tensor
    """int32 [n, longest], padded with 0."""
    labels: Tensor
    """int64 [n]."""
    facts: TextFacts

    @classmethod
    def of(
        cls, split: TextSplit, facts: TextFacts, rows: NDArray[np.int64] | None = None
    ) -> TextData:
        """Copy the given rows of a split into memory; without rows take all of it, not copied."""
        tokens, labels = split if rows is None else (split.tokens[rows], split.labels[rows])
        return cls(torch.from_numpy(tokens), torch.from_numpy(labels), facts)

    def _served(self, batches: Iterator[Rows], chance: torch.Generator | None) -> Batches:
        """Yield int64 tokens, no longer than the batch's longest; texts are not augmented."""
        lengths = (self.tokens != 0).sum(1).cpu()  # once a pass, so that no batch waits for it
        for rows in batches:
            longest = int(taken(lengths, rows if isinstance(rows, slice) else rows.cpu()).max())
            yield taken(self.tokens, rows)[:, :longest].long(), taken(self.labels, rows)
