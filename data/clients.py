"""The data that each client trains, validates and tests on, and that the server tests on."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from data.cache import Arrays, cached_arrays
from data.catalog import LANGUAGE, PartitionError
from data.examples import (
    Examples,
    ImageData,
    ImageSplit,
    LanguageData,
    LanguageSplit,
    SeriesData,
    SeriesSplit,
    Split,
    TextData,
    with_overlaps,
)
from data.own_source import own_owners
from data.partition import Rows, like_a_client, partition, server_rows, split_parts
from data.spec import DatasetSpec, image_facts, series_facts, text_facts
from data.splits import device_split, splits_of

log = logging.getLogger("flwr")  # whose lines a SuperNode shows


@dataclass(frozen=True)
class ClientData:
    """A client's three parts: no example is in two of them."""

    train: Examples
    validation: Examples
    test: Examples


def client_data(spec: DatasetSpec, partition_id: int) -> ClientData:
    """Return the data of one simulated client."""
    if not 0 <= partition_id < spec.clients:
        raise PartitionError(f"no client {partition_id}: expected 0 to {spec.clients - 1}")
    splits = splits_of(spec)
    parted = _parted(splits.train, client_rows(spec)[partition_id], spec, partition_id)
    if spec.local_test == "own":
        return parted
    return replace(parted, test=_examples(splits.test, spec, _test_rows(spec, partition_id)))


def all_clients(spec: DatasetSpec) -> ClientData:
    """Return the data of all simulated clients together, part by part, no example twice."""
    parted = [split_parts(rows, spec, number) for number, rows in enumerate(client_rows(spec))]
    train = splits_of(spec).train
    joined = (np.concatenate(parts) for parts in zip(*parted, strict=True))
    together = ClientData(*(_examples(train, spec, rows) for rows in joined))
    if spec.local_test == "own":
        return together
    drawn = np.concatenate([_test_rows(spec, number) for number in range(spec.clients)])
    return replace(together, test=_examples(splits_of(spec).test, spec, np.unique(drawn)))


def device_data(path: Path | str, spec: DatasetSpec) -> ClientData:
    """Return a real device's data: the training examples in its files, parted as a client's.

    It has no test split but its own: what the run asks of other clients is no matter here.
    """
    if spec.holds == "language":
        raise PartitionError(
            f"a device's own text has a vocabulary of its own, and {spec.name} is one text for "
            "all; give devices parts of it (partition-id and num-partitions)"
        )
    if spec.local_test != "own":
        log.warning("local_test is %s, but this device tests on its own data", spec.local_test)
        spec = replace(spec, local_test="own")
    own = device_split(spec, str(path))
    return _parted(own, np.arange(len(own.labels)), spec, 0)


def examples_of_clients(spec: DatasetSpec) -> list[int]:
    """Return how many examples each simulated client trains on, without reading them."""
    return [
        len(split_parts(rows, spec, number)[0]) for number, rows in enumerate(client_rows(spec))
    ]


def global_test(spec: DatasetSpec) -> Examples:
    """Return the data set's test examples, which no client trains on."""
    test = splits_of(spec).test
    if spec.max_test is None or spec.max_test >= len(test.labels):
        return _examples(test, spec)
    chosen = np.random.default_rng(spec.seed).permutation(len(test.labels))[: spec.max_test]
    return _examples(test, spec, np.sort(chosen))


def server_data(spec: DatasetSpec) -> Examples:
    """Return the training examples that the server keeps, which no simulated client has."""
    train = splits_of(spec).train
    return _examples(train, spec, server_rows(spec, len(train.labels)))


@lru_cache(maxsize=8)
def client_rows(spec: DatasetSpec) -> tuple[Rows, ...]:
    """Return each client's rows of the training split; kept on disk, for partitioning is slow."""
    labels = splits_of(spec).train.labels
    dealing = replace(spec, path=None, validation=0.0, test=0.0, max_test=None, local_test="own")
    dealing = replace(dealing, local_test_examples=DatasetSpec.local_test_examples)
    dealing = replace(dealing, tokenizer=None, max_tokens=DatasetSpec.max_tokens, words=None)
    owners = own_owners(spec) if spec.is_natural else None
    whose = None if owners is None else (owners.names, owners.of_rows.tobytes())
    key = (dealing, hashlib.sha256(labels.tobytes() + repr(whose).encode()).hexdigest())

    def deal() -> Arrays:
        parts = partition(spec, labels, owners)
        return {"rows": np.concatenate(parts), "sizes": np.array([len(part) for part in parts])}

    dealt = cached_arrays("partition", key, deal)
    return tuple(np.split(dealt["rows"], np.cumsum(dealt["sizes"])[:-1]))


def _test_rows(spec: DatasetSpec, client: int) -> Rows:
    """Return a client's rows of the test split; all that it has say what its classes are."""
    splits = splits_of(spec)
    own = splits.train.labels[client_rows(spec)[client]]
    return like_a_client(own, splits.test.labels, spec, client)


def _parted(split: Split, rows: Rows, spec: DatasetSpec, stream: int) -> ClientData:
    train, validation, test = split_parts(rows, spec, stream)
    others = _examples(split, spec, validation), _examples(split, spec, test)
    if isinstance(split, SeriesSplit) and spec.stride is not None:
        return ClientData(_examples(with_overlaps(split, train, spec.stride), spec), *others)
    return ClientData(_examples(split, spec, train), *others)


def _examples(split: Split, spec: DatasetSpec, rows: Rows | None = None) -> Examples:
    if isinstance(split, ImageSplit):
        return ImageData.of(split, image_facts(spec), rows)
    if isinstance(split, LanguageSplit):
        return LanguageData.of(split, LANGUAGE[spec.name], rows)
    if isinstance(split, SeriesSplit):
        return SeriesData.of(split, series_facts(spec), rows)
    return TextData.of(split, text_facts(spec), rows)
