"""Return the data that each client trains, validates and tests on, and that the server tests on.

A data set is dealt out once a process for each spec, and looked up afterwards: a client's message
only copies the client's rows.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from data.cache import Arrays, cached_arrays
from data.catalog import DatasetFacts, PartitionError
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
    TextSplit,
    with_overlaps,
)
from data.own_source import own_owners
from data.partition import Rows, like_a_client, partition, server_rows, split_parts
from data.spec import DatasetSpec
from data.splits import device_split, splits_of

DATA: dict[type, Any] = {
    ImageSplit: ImageData,
    LanguageSplit: LanguageData,
    SeriesSplit: SeriesData,
    TextSplit: TextData,
}
"""The examples that each kind of split is made into."""

log = logging.getLogger("flwr")  # whose lines a SuperNode shows


@dataclass(frozen=True)
class ClientData:
    """A client's three parts: no example is in two of them."""

    train: Examples
    validation: Examples
    test: Examples


@dataclass(frozen=True, eq=False)
class Deal:
    """A training split, and the rows of it that each client has."""

    spec: DatasetSpec
    facts: DatasetFacts
    train: Split
    rows: tuple[Rows, ...]
    test: Split | None = None
    """The data set's test split, where clients test on examples of it."""
    _parts: dict[int, tuple[Rows, Rows, Rows]] = field(default_factory=dict)

    def parts(self, client: int) -> tuple[Rows, Rows, Rows]:
        """Return a client's rows to train, to validate and to test on, drawn at the first call.

        The last are of the test split, if there is one.
        """
        if client not in self._parts:
            train, validation, test = split_parts(self.rows[client], self.spec, client)
            if self.test is not None:
                own = self.train.labels[self.rows[client]]  # all of them say its classes
                test = like_a_client(own, self.test.labels, self.spec, client)
            self._parts[client] = train, validation, test
        return self._parts[client]

    def data(self, parts: tuple[Rows, Rows, Rows]) -> ClientData:
        """Copy the rows of parts into memory."""
        train, validation, test = parts
        tested = self.train if self.test is None else self.test
        return ClientData(
            self._trained_on(train),
            _examples(self.train, self.facts, validation),
            _examples(tested, self.facts, test),
        )

    def _trained_on(self, rows: Rows) -> Examples:
        """Return examples to train on: of windows also those between neighbours, if asked for."""
        if isinstance(self.train, SeriesSplit) and self.spec.stride is not None:
            return _examples(with_overlaps(self.train, rows, self.spec.stride), self.facts)
        return _examples(self.train, self.facts, rows)


def client_data(spec: DatasetSpec, partition_id: int) -> ClientData:
    """Return the data of one simulated client."""
    if not 0 <= partition_id < spec.clients:
        raise PartitionError(f"no client {partition_id}: expected 0 to {spec.clients - 1}")
    deal = deal_of(spec)
    return deal.data(deal.parts(partition_id))


def all_clients(spec: DatasetSpec) -> ClientData:
    """Return the data of all simulated clients together, part by part, no example twice."""
    deal = deal_of(spec)
    train, validation, test = (
        np.concatenate(rows) for rows in zip(*map(deal.parts, range(spec.clients)), strict=True)
    )
    tested = (deal.train, test) if deal.test is None else (deal.test, np.unique(test))
    return ClientData(
        _examples(deal.train, deal.facts, train),
        _examples(deal.train, deal.facts, validation),
        _examples(tested[0], deal.facts, tested[1]),
    )


def device_data(path: Path | str, spec: DatasetSpec) -> ClientData:
    """Return a real device's data: the training examples in its files, parted as a client's.

    Its test part is of these files, too: it has no test split.
    """
    if spec.holds == "language":
        raise PartitionError(
            f"a device's own text has a vocabulary of its own, and {spec.name} is one text for "
            "all; give devices parts of it (partition-id and num-partitions)"
        )
    if spec.local_test != "own":
        log.warning("local_test is %s, but this device tests on its own data", spec.local_test)
        spec = replace(spec, local_test="own")
    deal = _device_deal(spec, str(path))
    return deal.data(deal.parts(0))


def examples_of_clients(spec: DatasetSpec) -> list[int]:
    """Return the number of examples that each simulated client trains on, without reading them."""
    deal = deal_of(spec)
    return [len(split_parts(rows, spec, number)[0]) for number, rows in enumerate(deal.rows)]


def global_test(spec: DatasetSpec) -> Examples:
    """Return the data set's test examples, which no client trains on."""
    test = splits_of(spec).test
    if spec.max_test is None or spec.max_test >= len(test.labels):
        return _examples(test, spec.facts)
    chosen = np.random.default_rng(spec.seed).permutation(len(test.labels))[: spec.max_test]
    return _examples(test, spec.facts, np.sort(chosen))


def server_data(spec: DatasetSpec) -> Examples:
    """Return the training examples that the server keeps, which no simulated client has."""
    train = splits_of(spec).train
    return _examples(train, spec.facts, server_rows(spec, len(train.labels)))


def client_rows(spec: DatasetSpec) -> tuple[Rows, ...]:
    """Return each client's rows of the training split."""
    return deal_of(spec).rows


@lru_cache(maxsize=8)
def deal_of(spec: DatasetSpec) -> Deal:
    """Deal a data set out to simulated clients; kept on disk, too, for partitioning is slow."""
    train, test = splits_of(spec)
    dealing = replace(spec, path=None, validation=0.0, test=0.0, max_test=None, local_test="own")
    dealing = replace(dealing, local_test_examples=DatasetSpec.local_test_examples)
    dealing = replace(dealing, tokenizer=None, max_tokens=DatasetSpec.max_tokens, words=None)
    owners = own_owners(spec) if spec.is_natural else None
    whose = None if owners is None else (owners.names, owners.of_rows.tobytes())
    key = (dealing, hashlib.sha256(train.labels.tobytes() + repr(whose).encode()).hexdigest())

    def deal() -> Arrays:
        parts = partition(spec, train.labels, owners)
        return {"rows": np.concatenate(parts), "sizes": np.array([len(part) for part in parts])}

    dealt = cached_arrays("partition", key, deal)
    rows = tuple(np.split(dealt["rows"], np.cumsum(dealt["sizes"])[:-1]))
    return Deal(spec, spec.facts, train, rows, test if spec.local_test == "global" else None)


@lru_cache(maxsize=4)
def _device_deal(spec: DatasetSpec, path: str) -> Deal:
    """Return all examples in a device's own files as the rows of one client."""
    own = device_split(spec, path)
    return Deal(spec, spec.facts, own, (np.arange(len(own.labels)),))


def _examples(split: Split, facts: DatasetFacts, rows: Rows | None = None) -> Examples:
    made: Examples = DATA[type(split)].of(split, facts, rows)
    return made
