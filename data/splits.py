"""Load a data set's two splits: decoded or tokenised once a machine, then memory-mapped.

The arrays are read-only in effect and shared by all processes. A test set that is not published,
or not there, is held out of the training examples.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data.cache import Arrays, cache_dir, cached_arrays
from data.catalog import (
    IMAGES,
    LANGUAGE,
    TEXTS,
    DataError,
    DatasetFacts,
    ImageFacts,
    LanguageFacts,
    PartitionError,
    TextFacts,
)
from data.examples import (
    UNKNOWN,
    ImageSplit,
    LanguageSplit,
    SeriesSplit,
    Split,
    Splits,
    TextSplit,
)
from data.foreign_files import reading
from data.homes import with_home
from data.image_files import checked_split
from data.image_tables import read_table
from data.locate import SplitFiles, locate, locate_language, locate_texts
from data.own_source import device_arrays, own_arrays
from data.spec import WHITESPACE, DatasetSpec
from data.text_files import Texts, read_docstrings, read_text_files, read_text_table, versions
from data.tokens import encode, fingerprint
from data.words import Lines, numbered, read_lines, runs, table_lines, vocabulary, words_of

HELD_OUT_SHARE = 0.2
"""Share of a data set that becomes its test set where it has none of its own."""
HELD_OUT_SEED = 0


def splits_of(spec: DatasetSpec) -> Splits[Split]:
    """Return the two splits of any data set."""
    if spec.holds == "language":
        return load_language(spec)
    if spec.holds == "series":
        return own_series(spec)
    return load_images(spec) if spec.holds == "images" else load_texts(spec)


def device_split(spec: DatasetSpec, path: str) -> Split:
    """Return all training examples in a device's own files; no global test set is held out here."""
    if spec.is_own:
        arrays = device_arrays(spec, path)
        if spec.holds == "series":
            return SeriesSplit(arrays["inputs"], arrays["labels"], arrays.get("places"))
        make = ImageSplit if spec.holds == "images" else TextSplit
        return make(arrays["inputs"], arrays["labels"])
    if spec.holds == "images":
        return _device_images(spec.name, path, cache_dir())
    return _device_texts(spec.name, path, spec.tokenizer, spec.max_tokens, cache_dir())


def own_series(spec: DatasetSpec) -> Splits[SeriesSplit]:
    """Return the two splits of a table of numbers."""
    arrays = own_arrays(spec)
    return Splits(
        SeriesSplit(arrays["train"], arrays["train-labels"], arrays.get("train-places")),
        SeriesSplit(arrays["test"], arrays["test-labels"]),
    )


# --- images


def load_images(spec: DatasetSpec) -> Splits[ImageSplit]:
    """Return the two splits of a data set of images."""
    if not spec.is_own:
        return _images(spec.name, spec.path, cache_dir())
    arrays = own_arrays(spec)
    return Splits(
        ImageSplit(arrays["train"], arrays["train-labels"]),
        ImageSplit(arrays["test"], arrays["test-labels"]),
    )


@lru_cache(maxsize=4)
def _images(name: str, path: str | None, _cache: Path) -> Splits[ImageSplit]:
    facts = IMAGES[name]
    if path is not None:
        files = locate(with_home(path).resolve(), name)
        key: object = ("splits", files.fingerprint())
        arrays = cached_arrays(name, key, lambda: _named(_read_splits(files, facts)))
    elif facts.hub:
        arrays = cached_arrays(name, facts.hub, lambda: _named(_hub_images(facts)))
    else:
        arrays = cached_arrays(name, "bundled", lambda: _named(_read_digits(facts)))
    return Splits(
        ImageSplit(arrays["train-images"], arrays["train-labels"]),
        ImageSplit(arrays["test-images"], arrays["test-labels"]),
    )


@lru_cache(maxsize=4)
def _device_images(name: str, path: str, _cache: Path) -> ImageSplit:
    files = locate(with_home(path).resolve(), name)

    def read() -> Arrays:
        return files.read(files.train, IMAGES[name], "train")._asdict()

    arrays = cached_arrays(name, ("own", files.fingerprint()), read)
    return ImageSplit(arrays["images"], arrays["labels"])


def _named(splits: Splits[ImageSplit] | Splits[TextSplit]) -> Arrays:
    """Return the arrays of both splits by the names that they have in the cache."""
    return {
        f"{name}-{kind}": array
        for name, split in splits._asdict().items()
        for kind, array in split._asdict().items()
    }


def _read_splits(files: SplitFiles, facts: ImageFacts) -> Splits[ImageSplit]:
    train = files.read(files.train, facts, "train")
    if files.test:
        return Splits(train, files.read(files.test, facts, "test"))
    return _hold_out_test(train)


def _read_digits(facts: ImageFacts) -> Splits[ImageSplit]:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)  # 0 to 16 in each of 8x8 pixels
    scaled: NDArray[np.uint8] = np.round(images * (255 / 16)).astype(np.uint8)
    return _hold_out_test(checked_split(scaled.reshape(-1, *facts.image_shape), labels, facts))


def _hold_out_test(everything: ImageSplit) -> Splits[ImageSplit]:
    train, test = held_out(everything.labels)
    images, labels = everything
    return Splits(ImageSplit(images[train], labels[train]), ImageSplit(images[test], labels[test]))


def held_out(labels: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return rows to train and to test on: the same fifth of every class, whatever the seed."""
    from sklearn.model_selection import train_test_split

    rows = np.arange(len(labels))
    try:
        train, test = train_test_split(
            rows, test_size=HELD_OUT_SHARE, random_state=HELD_OUT_SEED, stratify=labels
        )
    except ValueError as error:
        raise PartitionError(
            f"no test set can be held out of {len(labels)} examples: {error}"
        ) from error
    return train, test


def _hub_images(facts: ImageFacts) -> Splits[ImageSplit]:
    from datasets import load_dataset

    try:
        train, test = load_dataset(*facts.hub, split=["train", facts.hub_test])
    except Exception as error:  # whatever went wrong, the way out is the same
        raise _not_fetched(
            facts,
            error,
            "a folder of *train*.parquet and *test*.parquet, IDX files, an .npz, or one folder of "
            "images a class",
        ) from error
    # The paths are those of the library's own copies.
    return Splits(
        *(read_table(part.data.table, facts, lambda _, text: Path(text)) for part in (train, test))
    )


def _not_fetched(facts: DatasetFacts, error: Exception, copy: str) -> DataError:
    return DataError(
        f"{facts.name} could not be fetched as {' '.join(facts.hub)} from Hugging Face "
        f"({type(error).__name__}: {error}). Without a network, set the data set's path to a "
        f"local copy: {copy}"
    )


# --- texts

ReadTexts = Callable[[str], Texts | None]
"""Returns the texts of the split of a name, if there is one."""


def load_texts(spec: DatasetSpec) -> Splits[TextSplit]:
    """Return the two splits of a data set of texts, as tokens."""
    if not spec.is_own:
        return _texts(spec.name, spec.path, spec.tokenizer, spec.max_tokens, cache_dir())
    arrays = own_arrays(spec)
    return Splits(
        TextSplit(arrays["train"], arrays["train-labels"]),
        TextSplit(arrays["test"], arrays["test-labels"]),
    )


@lru_cache(maxsize=4)
def _texts(
    name: str, path: str | None, tokenizer: str | None, max_tokens: int, _cache: Path
) -> Splits[TextSplit]:
    facts = TEXTS[name]
    read, source = _text_reader(facts, path)

    def tokenise() -> Arrays:
        parts = _text_splits(read, facts)
        return _named(Splits(*(_encoded(texts, tokenizer, max_tokens) for texts in parts)))

    key = ("splits", source, fingerprint(tokenizer), max_tokens)
    arrays = cached_arrays(name, key, tokenise)
    return Splits(
        TextSplit(arrays["train-tokens"], arrays["train-labels"]),
        TextSplit(arrays["test-tokens"], arrays["test-labels"]),
    )


@lru_cache(maxsize=4)
def _device_texts(
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


def _text_reader(facts: TextFacts, path: str | None) -> tuple[ReadTexts, object]:
    """Return a function that reads a split, and the facts that its texts depend on."""
    if path is None and facts.hub:
        return lambda split: _hub_texts(split, facts), facts.hub
    if path is None:
        return lambda split: read_docstrings(facts) if split == "train" else None, versions(facts)
    files = locate_texts(with_home(path).resolve(), facts.name)

    def read(split: str) -> Texts | None:
        found = getattr(files, split)
        return read_text_files(found, facts) if found else None

    return read, files.fingerprint()


def _hub_texts(split: str, facts: TextFacts) -> Texts | None:
    from datasets import get_dataset_split_names, load_dataset

    try:
        if split not in get_dataset_split_names(*facts.hub):
            return None
        table = load_dataset(*facts.hub, split=split).data.table
    except Exception as error:  # whatever went wrong, the way out is the same
        copy = "a folder of *train*.parquet and *test*.parquet"
        raise _not_fetched(facts, error, copy) from error
    return read_text_table(table, facts)


def _text_splits(read: ReadTexts, facts: TextFacts) -> tuple[Texts, Texts]:
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
    return _text_rows(train, to_train), _text_rows(train, to_test)


def _labelled(texts: Texts, facts: TextFacts) -> Texts:
    if not texts.texts or (texts.labels == UNKNOWN).any():
        raise DataError(
            f"{len(texts.texts)} texts of {facts.name}, {(texts.labels == UNKNOWN).sum()} of them "
            "without a label: expected a label each"
        )
    return texts


def _text_rows(texts: Texts, rows: NDArray[np.int64]) -> Texts:
    return Texts([texts.texts[row] for row in rows], texts.labels[rows])


# --- running texts

ReadLines = Callable[[str], Lines | None]
"""Returns the lines of the split of a name, if there is one."""


def load_language(spec: DatasetSpec) -> Splits[LanguageSplit]:
    """Return the two splits of a running text, as numbers of words."""
    words = spec.tokenizer or WHITESPACE
    return _language(spec.name, spec.path, words, spec.max_tokens, spec.num_classes, cache_dir())


@lru_cache(maxsize=4)
def _language(
    name: str, path: str | None, tokenizer: str, max_tokens: int, size: int, _cache: Path
) -> Splits[LanguageSplit]:
    facts = LANGUAGE[name]
    read, source, where = _line_reader(facts, path)

    def number() -> Arrays:
        train, test = _line_splits(read, facts)
        with reading(Path(where)):
            words = [word for line in train for word in words_of(line, tokenizer)]
            known = vocabulary(words, size)
            others = (word for line in test for word in words_of(line, tokenizer))
            return {
                "train": runs(numbered(words, known), max_tokens),
                "test": runs(numbered(others, known), max_tokens),
            }

    arrays = cached_arrays(name, ("splits", source, tokenizer, max_tokens, size), number)
    return Splits(LanguageSplit(arrays["train"]), LanguageSplit(arrays["test"]))


def _line_reader(facts: LanguageFacts, path: str | None) -> tuple[ReadLines, object, str]:
    """Return a function that reads a split, the facts that its lines depend on, and their place."""
    if path is None and facts.hub:
        return lambda split: _hub_lines(split, facts), facts.hub, "/".join(facts.hub)
    if path is None:
        source = versions(TEXTS["docstrings"])
        return lambda split: _docstring_lines() if split == "train" else None, source, facts.name
    place = with_home(path).resolve()
    files = locate_language(place, facts.name)

    def read(split: str) -> Lines | None:
        found: Sequence[Path] = getattr(files, split)
        return [line for file in found for line in read_lines(file)] if found else None

    return read, files.fingerprint(), str(place)


def _hub_lines(split: str, facts: LanguageFacts) -> Lines:
    from datasets import load_dataset

    try:
        table: Any = load_dataset(*facts.hub, split=split).data.table
    except Exception as error:  # whatever went wrong, the way out is the same
        copy = "a folder of *train*.tokens and *test*.tokens, or of parquet"
        raise _not_fetched(facts, error, copy) from error
    return table_lines(table)


def _docstring_lines() -> Lines:
    """Return the docstrings of the libraries that nestfl needs anyway, mixed."""
    texts = read_docstrings(TEXTS["docstrings"]).texts
    return sorted(texts, key=lambda text: hashlib.sha256(text.encode()).hexdigest())


def _line_splits(read: ReadLines, facts: LanguageFacts) -> tuple[Lines, Lines]:
    """Read the lines to train and to test on; where there are no others, the last fifth of all."""
    train = read("train")
    if train is None:
        raise DataError(f"{facts.name} has no text to train on")
    for split in ("test", "validation"):
        if (test := read(split)) is not None:
            return train, test
    kept = round(len(train) * (1 - HELD_OUT_SHARE))
    return train[:kept], train[kept:]
