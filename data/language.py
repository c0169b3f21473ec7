"""Runs of a text in memory, as words of a vocabulary; the label of each word is the next one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.catalog import LanguageFacts
from data.examples import Batches, Examples, Rows, taken


class LanguageSplit(NamedTuple):
    """Runs of a text, row by row: a row's last word is the next row's first."""

    words: NDArray[np.int32]

    @property
    def labels(self) -> NDArray[np.int64]:
        """One for each row, as other splits have it: nothing depends on which."""
        return self.words[:, 0].astype(np.int64)


@dataclass(frozen=True, eq=False)
class LanguageData(Examples):
    """Runs of a text: an example has as many labels as words, and a network as many answers."""

    inputs: Tensor
    """int32 [n, tokens]."""
    labels: Tensor
    """int32 [n, tokens], the inputs and one word more, without the first."""
    facts: LanguageFacts

    @classmethod
    def of(
        cls, split: LanguageSplit, facts: LanguageFacts, rows: NDArray[np.int64] | None = None
    ) -> LanguageData:
        """Copy the given rows of a split into memory; without rows take all of it, not copied."""
        words = torch.from_numpy(split.words if rows is None else split.words[rows])
        return cls(words[:, :-1], words[:, 1:], facts)

    def _served(self, batches: Iterator[Rows], chance: torch.Generator | None) -> Batches:
        """Yield int64 words, and their labels as one row: a language model's answers are one, too.

        Texts are not augmented.
        """
        for rows in batches:
            yield taken(self.inputs, rows).long(), taken(self.labels, rows).long().flatten()
