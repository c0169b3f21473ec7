"""Data of one's own, decoded or tokenised once a machine, then memory-mapped.

What is read depends on the files and on the part of the spec that is not about dealing out, so runs
and devices that ask for the same share it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data.cache import Arrays, Fingerprint, cache_dir, cached_arrays
from data.catalog import (
    DataError,
    DatasetFacts,
    ImageFacts,
    PartitionError,
    SeriesFacts,
    UnknownClassError,
)
from data.foreign_files import Broken, raise_if
from data.image_files import decode_images, fitted_array
from data.image_tables import (
    fingerprint_of_named,
    holds_all_images,
    image_column,
    named_files,
    paths_in,
)
from data.listed import Listed
from data.listing import Purpose, listed, own_files
from data.own_files import OwnFiles
from data.spec import DatasetSpec
from data.tables import columns_of, read_table_file
from data.tokens import encode, fingerprint

TEST_SHARE = 0.2
"""Of each class, for nobody to train on, where no files are for tests."""


class Owners(NamedTuple):
    """The clients that data has by nature, and whose each training example is."""

    names: tuple[str, ...]
    """In the order of the alphabet."""
    of_rows: NDArray[np.int64]
    """Each example's place in them."""
    held_out: tuple[str, ...] = ()
    """Those of whom all examples are held out for the test: they are no clients."""


def own_owners(spec: DatasetSpec) -> Owners:
    """Return the clients of a natural partition."""
    arrays = own_arrays(spec)
    if "owners" not in arrays:
        raise PartitionError(
            f"partition is {spec.partition}, but the data has no folders of clients: expected "
            "CLIENT/CLASS/IMAGE"
        )
    names, held_out = (tuple(arrays[name].tolist()) for name in ("owners", "owners-held-out"))
    return Owners(names, arrays["train-owners"], held_out)


def own_arrays(spec: DatasetSpec) -> Arrays:
    """Return the arrays of both splits, which all processes share."""
    return _arrays(reading_of(spec), cache_dir())


def device_arrays(spec: DatasetSpec, path: str) -> Arrays:
    """Return all training examples in a device's own files: `inputs` and `labels`."""
    plain = replace(all_of(reading_of(spec)), path=path, column=None, test_column=None)
    return _device_arrays(plain, cache_dir())


def reading_of(spec: DatasetSpec) -> DatasetSpec:
    """Return the spec as far as what is read depends on it: pixels are normalised later."""
    channels = len(spec.columns or ()) if spec.holds == "series" else spec.channels or 0
    return replace(spec.undealt(), mean=(0.0,) * channels, std=(1.0,) * channels)


def all_of(spec: DatasetSpec) -> DatasetSpec:
    """Return the spec of all examples, whichever of them are held out for the test."""
    return replace(spec, test_share=None, test_seed=None)


@lru_cache(maxsize=4)
def _arrays(spec: DatasetSpec, _cache: Path) -> Arrays:
    files = own_files(spec)
    read_of = fingerprint_of_own(files, spec)
    key = ("parts", replace(spec, path=None), read_of, fingerprint(spec.tokenizer))
    return cached_arrays(spec.name, key, lambda: _read(files, spec))


@lru_cache(maxsize=4)
def _device_arrays(spec: DatasetSpec, _cache: Path) -> Arrays:
    files = own_files(spec)
    read_of = fingerprint_of_own(files, spec)
    key = ("own", replace(spec, path=None), read_of, fingerprint(spec.tokenizer))

    def read() -> Arrays:
        train = training_list(files, spec)
        labels = labels_of(train, spec.facts)
        return {"inputs": read_inputs_of(train, spec), "labels": labels, **_places(train, "places")}

    return cached_arrays(spec.name, key, read)


def _read(files: OwnFiles, spec: DatasetSpec) -> Arrays:
    """Read the examples to train on and those to test on, held out where no files are for that."""
    train, test = training_list(files, spec), testing_list(files, spec)
    labels, inputs = labels_of(train, spec.facts), read_inputs_of(train, spec)
    to_train: Any = slice(None)
    if test is None:
        to_train, to_test = _held_out(train, labels, spec)
        held_out = {"test": inputs[to_test], "test-labels": labels[to_test]}
    elif spec.test_column is not None:
        raise DataError(
            f"test_column is {spec.test_column}, but there are files for the test: expected null"
        )
    else:
        held_out = {"test": read_inputs_of(test, spec), "test-labels": labels_of(test, spec.facts)}
    return {
        "train": inputs[to_train],
        "train-labels": labels[to_train],
        **held_out,
        **_owners(train.owners, to_train),
        **_places(train, "train-places", to_train),
    }


def _held_out(
    train: Listed, labels: NDArray[np.int64], spec: DatasetSpec
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    if spec.test_column is None:
        return held_out_of_each(labels, spec)
    if train.groups is None:
        raise DataError(
            f"test_column is {spec.test_column}, but folders of images have no columns: expected "
            "null"
        )
    return held_out_groups(train.groups, labels, spec)


def _places(train: Listed, name: str, kept: Any = slice(None)) -> Arrays:
    """Return the first row of each window of a table, counted with a gap between runs of rows."""
    if train.starts is None or train.runs is None:
        return {}
    return {name: (train.starts + train.runs)[kept]}


def _owners(owners: Sequence[str] | None, kept: Any) -> Arrays:
    if owners is None:
        return {}
    names, of_rows = np.unique(np.array(owners)[kept], return_inverse=True)
    held_out = np.setdiff1d(owners, names)
    return {
        "owners": names,
        "train-owners": of_rows.astype(np.int64),
        "owners-held-out": held_out,
    }


def training_list(files: OwnFiles, spec: DatasetSpec) -> Listed:
    """List the examples to train on, each of which has a class."""
    found = listed(files, "train", spec)
    if found is None or not len(found):
        raise DataError(f"no examples in {files.path}")
    broken = list(found.broken)
    places = {each.place for each in broken}
    for row, label in enumerate(found.labels):
        if label is None and found.place(row) not in places:
            broken.append(Broken(found.place(row), ": no label: expected a class"))
    raise_if(broken)
    return found


def testing_list(files: OwnFiles, spec: DatasetSpec) -> Listed | None:
    """List the examples to test on: of test files, else of validation files; None without any.

    Files whose classes are not published are no test.
    """
    purposes: tuple[Purpose, ...] = ("test", "validation")
    for purpose in purposes:
        found = listed(files, purpose, spec)
        if found is not None and any(label is not None for label in found.labels):
            raise_if(found.broken)
            return found
    return None


def labels_of(examples: Listed, facts: DatasetFacts) -> NDArray[np.int64]:
    """Return the number of each example's class; raise for classes that the run does not know."""
    known: dict[str | None, int] = {name: label for label, name in enumerate(facts.classes)}
    found = np.array([known.get(name, -1) for name in examples.labels], np.int64)
    unknown: list[int] = np.flatnonzero(found < 0).tolist()
    if unknown:
        names = sorted({str(examples.labels[row]) for row in unknown})
        count = f"{len(unknown)} of {len(found)} examples are of {len(names)} classes"
        raise UnknownClassError(
            f"{examples.place(unknown[0])} is of the class {names[0]!r}, which the run does "
            f"not know ({count} that it does not); its classes are: {facts.shown_classes}",
            f"{count} that are none of the run's {facts.num_classes}",
        )
    return found


def read_inputs_of(examples: Listed, spec: DatasetSpec) -> NDArray[Any]:
    """Decode images to [n, channels, height, width], make tokens of texts, or check series."""
    facts, inputs = spec.facts, examples.inputs
    if isinstance(facts, SeriesFacts):
        return _checked_series(examples, facts)
    if not isinstance(facts, ImageFacts):
        return encode(inputs, spec.tokenizer, spec.max_tokens)
    if isinstance(inputs, np.ndarray):
        return fitted_array(inputs, facts)
    images = decode_images(inputs, len(examples), facts, examples.place)
    return np.ascontiguousarray(images.transpose(0, 3, 1, 2))


def _checked_series(examples: Listed, facts: SeriesFacts) -> NDArray[np.float32]:
    found: NDArray[np.float32] = examples.inputs
    expected = (len(facts.columns), facts.length)
    if found.shape[1:] != expected:
        raise DataError(
            f"{examples.place(0)}: series of {found.shape[1]} columns and {found.shape[2]} steps: "
            f"expected {expected[0]} ({', '.join(facts.columns)}) and {expected[1]}"
        )
    return found


def held_out_groups(
    groups: Sequence[str], labels: NDArray[np.int64], spec: DatasetSpec
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return rows to train and to test on: all of some groups are to test on."""
    names, of_rows = np.unique(np.array(groups), return_inverse=True)
    if len(names) < 2:
        raise DataError(
            f"{spec.test_column} is {str(names[0])!r} everywhere: expected at least 2 groups, of "
            "which one is held out (dataset.test_column)"
        )
    share = TEST_SHARE if spec.test_share is None else spec.test_share
    held = np.random.default_rng(spec.test_seed or 0).permutation(len(names))
    held = held[: min(max(1, round(share * len(names))), len(names) - 1)]
    is_test = np.isin(of_rows, held)
    lost = set(labels[is_test].tolist()) - set(labels[~is_test].tolist())
    for label, name in enumerate(spec.facts.classes):
        if label in lost:
            raise DataError(
                f"class {name!r} is only in what is held out for the test ({spec.test_column} "
                f"{', '.join(names[np.sort(held)])}): choose another dataset.test_seed or "
                "dataset.test_column"
            )
    return np.flatnonzero(~is_test), np.flatnonzero(is_test)


def held_out_of_each(
    labels: NDArray[np.int64], spec: DatasetSpec
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return rows to train and to test on: a share of each class, at least one example of each."""
    share = TEST_SHARE if spec.test_share is None else spec.test_share
    rng = np.random.default_rng(spec.test_seed or 0)
    to_test = []
    for label, name in enumerate(spec.facts.classes):
        rows = rng.permutation(np.flatnonzero(labels == label))
        if len(rows) == 1:
            raise DataError(
                f"{spec.path}: class {name!r} has one example: expected at least 2, to train and "
                "to test on; add some, or give files for the test"
            )
        to_test.append(rows[: min(max(1, round(share * len(rows))), len(rows) - 1)])
    test = np.sort(np.concatenate(to_test))
    return np.setdiff1d(np.arange(len(labels)), test), test


def named_by(files: OwnFiles, spec: DatasetSpec) -> list[Path]:
    """Return the paths of images that tables name."""
    if files.kind != "tables" or spec.holds != "images":
        return []
    tables = (*files.train, *files.test, *files.validation)

    def names() -> Iterator[tuple[Path, str]]:
        for file in tables:
            column = image_column(columns_of(file))
            if not (file.suffix == ".parquet" and holds_all_images(file, column)):
                for text in paths_in(read_table_file(file, names=[column]).column(column)):
                    yield file, text

    return named_files("own", tables, names)


def fingerprint_of_own(files: OwnFiles, spec: DatasetSpec) -> Fingerprint:
    """Return the key of a cached copy: the files, and the images that tables name."""
    return [*files.fingerprint(), *fingerprint_of_named(named_by(files, spec))]
