"""Read a running text: its lines, their words, and the vocabulary of the most frequent words."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.catalog import DataError
from data.foreign_files import reading, unpacked
from data.parquet import first_column, open_parquet
from data.spec import WHITESPACE
from plugins.regular_files import open_regular

UNKNOWN, END_OF_LINE = "<unk>", "<eos>"
BASIC_ENGLISH = ((r"<br \/>|[;:]", " "), (r"([.,()!?'])", r" \1 "))
"""Replacements of torchtext's tokenizer `basic_english`, one after the other."""


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


# --- lines


Lines = list[str]
TEXT_COLUMNS = ("text",)


def read_lines(file: Path) -> Lines:
    """Read a text's lines: of a file, which may be gzipped, or of a column of parquet."""
    if file.suffix == ".parquet":
        table = open_parquet(file, lambda schema: [first_column(schema, TEXT_COLUMNS)])
        with reading(file):
            return table_lines(table)
    with reading(file), open_regular(file) as opened:
        content = io.BytesIO(unpacked(opened, file)) if file.suffix == ".gz" else opened
        return list(io.TextIOWrapper(content, encoding="utf-8", newline="\n"))


def table_lines(table: Any) -> Lines:
    lines: list[Any] = table.column(first_column(table.schema, TEXT_COLUMNS)).to_pylist()
    for row, line in enumerate(lines):
        if not isinstance(line, str):
            raise DataError(f"row {row} holds {line!r}: expected a line of text")
    return lines
