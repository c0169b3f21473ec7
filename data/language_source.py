"""A running text's words to train and to test on: numbered once a machine, then memory-mapped."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from data.cache import Arrays, cache_dir, cached_arrays
from data.catalog import LANGUAGE, TEXTS, DataError, LanguageFacts
from data.docstrings import read_docstrings, versions
from data.formats import reading, unpacked
from data.homes import with_home
from data.language import LanguageSplit
from data.locate import locate_language
from data.parquet import first_column, open_parquet
from data.source import HELD_OUT_SHARE
from data.spec import WHITESPACE, DatasetSpec
from data.words import numbered, runs, vocabulary, words_of
from plugins.regular_files import open_regular

Lines = list[str]
ReadSplit = Callable[[str], Lines | None]
"""The lines of the split of a name, if there is one."""
TEXT_COLUMNS = ("text",)


class LanguageSplits(NamedTuple):
    """The runs of words to deal out to clients, and those nobody trains on."""

    train: LanguageSplit
    test: LanguageSplit


def load_language(spec: DatasetSpec) -> LanguageSplits:
    """Return a running text's two splits, as read-only arrays shared by all processes."""
    tokenizer = spec.tokenizer or WHITESPACE
    return _load(spec.name, spec.path, tokenizer, spec.max_tokens, spec.num_classes, cache_dir())


@lru_cache(maxsize=4)
def _load(
    name: str, path: str | None, tokenizer: str, max_tokens: int, size: int, _cache: Path
) -> LanguageSplits:
    facts = LANGUAGE[name]
    read, source, where = _reader(facts, path)

    def number() -> Arrays:
        train, test = _splits(read, facts)
        with reading(Path(where)):
            words = [word for line in train for word in words_of(line, tokenizer)]
            known = vocabulary(words, size)
            others = (word for line in test for word in words_of(line, tokenizer))
            return {
                "train": runs(numbered(words, known), max_tokens),
                "test": runs(numbered(others, known), max_tokens),
            }

    arrays = cached_arrays(name, ("splits", source, tokenizer, max_tokens, size), number)
    return LanguageSplits(LanguageSplit(arrays["train"]), LanguageSplit(arrays["test"]))


def _reader(facts: LanguageFacts, path: str | None) -> tuple[ReadSplit, object, str]:
    """Return a function that reads a split, what it depends on, and where it reads."""
    if path is None and facts.hub:
        return _hub_reader(facts), facts.hub, "/".join(facts.hub)
    if path is None:
        read = lambda split: _docstrings() if split == "train" else None  # noqa: E731
        return read, versions(TEXTS["docstrings"]), facts.name
    place = with_home(path).resolve()
    files = locate_language(place, facts.name)

    def read_files(split: str) -> Lines | None:
        found: Sequence[Path] = getattr(files, split)
        return [line for file in found for line in read_lines(file)] if found else None

    return read_files, files.fingerprint(), str(place)


def read_lines(file: Path) -> Lines:
    """Read a text's lines: of a file, which may be gzipped, or of a column of parquet."""
    if file.suffix == ".parquet":
        table = open_parquet(file, lambda schema: [first_column(schema, TEXT_COLUMNS)])
        with reading(file):
            return _table_lines(table)
    with reading(file), open_regular(file) as opened:
        content = io.BytesIO(unpacked(opened, file)) if file.suffix == ".gz" else opened
        return list(io.TextIOWrapper(content, encoding="utf-8", newline="\n"))


def _table_lines(table: Any) -> Lines:
    lines: list[Any] = table.column(first_column(table.schema, TEXT_COLUMNS)).to_pylist()
    for row, line in enumerate(lines):
        if not isinstance(line, str):
            raise DataError(f"row {row} holds {line!r}: expected a line of text")
    return lines


def _hub_reader(facts: LanguageFacts) -> ReadSplit:
    def read(split: str) -> Lines:
        from datasets import load_dataset

        try:
            table = load_dataset(*facts.hub, split=split).data.table
        except Exception as error:  # whatever went wrong, the way out is the same
            raise DataError(
                f"{facts.name} could not be fetched as {' '.join(facts.hub)} from Hugging Face "
                f"({type(error).__name__}: {error}). Without a network, set the data set's path "
                "to a local copy: a folder of *train*.tokens and *test*.tokens, or of parquet"
            ) from error
        return _table_lines(table)

    return read


def _docstrings() -> Lines:
    """Return the docstrings of the libraries that we need anyway, mixed."""
    texts = read_docstrings(TEXTS["docstrings"]).texts
    return sorted(texts, key=lambda text: hashlib.sha256(text.encode()).hexdigest())


def _splits(read: ReadSplit, facts: LanguageFacts) -> tuple[Lines, Lines]:
    """Read the lines to train and to test on; where there are no others, the last fifth of all."""
    train = read("train")
    if train is None:
        raise DataError(f"{facts.name} has no text to train on")
    for split in ("test", "validation"):
        if (test := read(split)) is not None:
            return train, test
    kept = round(len(train) * (1 - HELD_OUT_SHARE))
    return train[:kept], train[kept:]
