"""The words of a running text, and its vocabulary: the most frequent ones."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from data.catalog import DataError
from data.spec import WHITESPACE

UNKNOWN, END_OF_LINE = "<unk>", "<eos>"
BASIC_ENGLISH = ((r"<br \/>|[;:]", " "), (r"([.,()!?'])", r" \1 "))
"""What torchtext's tokenizer `basic_english` replaces, one after the other."""


def words_of(line: str, tokenizer: str) -> list[str]:
    """Return a line's words: as they are, and its end; or as torchtext's `basic_english` does."""
    if tokenizer == WHITESPACE:
        return [*line.split(), END_OF_LINE]
    line = line.lower().replace('"', "")
    for pattern, replacement in BASIC_ENGLISH:
        line = re.sub(pattern, replacement, line)
    return line.split()


def vocabulary(words: Iterable[str], size: int) -> dict[str, int]:
    """Return the most frequent words, with their numbers; `<unk>`, for all others, is one of them.

    Of words that are as frequent, those come first that do so in the alphabet.
    """
    counts = Counter(words)
    counts.setdefault(UNKNOWN, 0)
    if len(counts) < size:
        raise DataError(
            f"the training text has {len(counts):,} words, and words is {size}: expected no more "
            "than there are"
        )
    kept = sorted(counts, key=lambda word: (-counts[word], word))[:size]
    if UNKNOWN not in kept:
        kept[-1] = UNKNOWN
    return {word: number for number, word in enumerate(kept)}


def numbered(words: Iterable[str], known: dict[str, int]) -> NDArray[np.int32]:
    """Return the numbers of words; those that are not known are `<unk>`."""
    unknown = known[UNKNOWN]
    return np.fromiter((known.get(word, unknown) for word in words), np.int32)


def runs(words: NDArray[np.int32], tokens: int) -> NDArray[np.int32]:
    """Cut a text into rows of `tokens` words and the one that follows; a shorter rest is left."""
    number = (len(words) - 1) // tokens
    if number < 1:
        raise DataError(
            f"a text of {len(words)} words is too short: expected at least {tokens + 1}, "
            "max_tokens and the word after them"
        )
    return np.lib.stride_tricks.sliding_window_view(words, tokens + 1)[::tokens][:number].copy()
