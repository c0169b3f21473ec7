"""A text data set's training and test texts: tokenised once a machine, then memory-mapped."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from data.cache import Arrays, cache_dir, cached_arrays
from data.catalog import TEXTS, DataError, TextFacts
from data.docstrings import read_docstrings, versions
from data.examples import UNKNOWN, Splits, TextSplit
from data.homes import with_home
from data.locate import locate_texts
from data.own_source import device_arrays, own_texts
from data.source import held_out
from data.spec import DatasetSpec
from data.text_formats import Texts, read_text_files, read_text_table
from data.tokens import encode, fingerprint

ReadSplit = Callable[[str], Texts | None]
"""The texts of the split of a name, if there is one."""


def load_texts(spec: DatasetSpec) -> Splits[TextSplit]:
    """Return the text data set's two splits, as read-only arrays shared by all processes."""
    if spec.is_own:
        return own_texts(spec)
    return _load(spec.name, spec.path, spec.tokenizer, spec.max_tokens, cache_dir())


def load_own_texts(spec: DatasetSpec, path: str) -> TextSplit:
    """Return all training texts in a device's own files; no global test set is held out here."""
    if spec.is_own:
        arrays = device_arrays(spec, path)
        return TextSplit(arrays["inputs"], arrays["labels"])
    return _load_own(spec.name, path, spec.tokenizer, spec.max_tokens, cache_dir())


@lru_cache(maxsize=4)
def _load(
    name: str, path: str | None, tokenizer: str | None, max_tokens: int, _cache: Path
) -> Splits[TextSplit]:
    facts = TEXTS[name]
    read, source = _reader(facts, path)

    def tokenise() -> Arrays:
        train, test = _splits(read, facts)
        tokens = {"train": train, "test": test}
        return {
            f"{split}-{kind}": array
            for split, texts in tokens.items()
            for kind, array in _encoded(texts, tokenizer, max_tokens)._asdict().items()
        }

    key = ("splits", source, fingerprint(tokenizer), max_tokens)
    arrays = cached_arrays(name, key, tokenise)
    return Splits(
        TextSplit(arrays["train-tokens"], arrays["train-labels"]),
        TextSplit(arrays["test-tokens"], arrays["test-labels"]),
    )


@lru_cache(maxsize=4)
def _load_own(
    name: str, path: str, tokenizer: str | None, max_tokens: int, _cache: Path
) -> TextSplit:
    facts = TEXTS[name]
    files = locate_texts(with_home(path).resolve(), name)

    def tokenise() -> Arrays:
        texts = _labelled(read_text_files(files.train, facts), facts)
        return _encoded(texts, tokenizer, max_tokens)._asdict()

    key = ("own", files.fingerprint(), fingerprint(tokenizer), max_tokens)
    arrays = cached_arrays(name, key, tokenise)
    return TextSplit(arrays["tokens"], arrays["labels"])


def _encoded(texts: Texts, tokenizer: str | None, max_tokens: int) -> TextSplit:
    return TextSplit(encode(texts.texts, tokenizer, max_tokens), texts.labels)


def _reader(facts: TextFacts, path: str | None) -> tuple[ReadSplit, object]:
    """Return a function that reads a split, and what it depends on."""
    if path is None and facts.hub:
        return _hub_reader(facts), facts.hub
    if path is None:
        return lambda name: read_docstrings(facts) if name == "train" else None, versions(facts)
    files = locate_texts(with_home(path).resolve(), facts.name)

    def read(split: str) -> Texts | None:
        found = getattr(files, split)
        return read_text_files(found, facts) if found else None

    return read, files.fingerprint()


def _hub_reader(facts: TextFacts) -> ReadSplit:
    def read(split: str) -> Texts | None:
        from datasets import get_dataset_split_names, load_dataset

        try:
            if split not in get_dataset_split_names(*facts.hub):
                return None
            table = load_dataset(*facts.hub, split=split).data.table
        except Exception as error:  # whatever went wrong, the way out is the same
            raise DataError(
                f"{facts.name} could not be fetched as {facts.hub[0]} from Hugging Face "
                f"({type(error).__name__}: {error}). Without a network, set the data set's path "
                "to a local copy: a folder of *train*.parquet and *test*.parquet"
            ) from error
        return read_text_table(table, facts)

    return read


def _splits(read: ReadSplit, facts: TextFacts) -> tuple[Texts, Texts]:
    """Read texts to train and to test on; a test set without labels gives way to validation."""
    train = read("train")
    if train is None:
        raise DataError(f"{facts.name} has no training texts")
    train = _labelled(train, facts)
    for split in ("test", "validation"):
        test = read(split)
        if test is not None and (test.labels != UNKNOWN).any():
            return train, _labelled(test, facts)
    to_train, to_test = held_out(train.labels)
    return _rows(train, to_train), _rows(train, to_test)


def _labelled(texts: Texts, facts: TextFacts) -> Texts:
    if not texts.texts or (texts.labels == UNKNOWN).any():
        raise DataError(
            f"{len(texts.texts)} texts of {facts.name}, {(texts.labels == UNKNOWN).sum()} of them "
            "without a label: expected a label each"
        )
    return texts


def _rows(texts: Texts, rows: NDArray[np.int64]) -> Texts:
    return Texts([texts.texts[row] for row in rows], texts.labels[rows])
