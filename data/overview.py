"""Describe data before anything is trained on it, and how it is dealt out to clients.

All that is wrong with files of one's own is gathered, not raised at the first.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from data.catalog import MOST_SHOWN
from data.clients import client_rows
from data.examples import Split
from data.foreign_files import Broken, BrokenFilesError
from data.image_files import undecodable
from data.listing import Purpose, listed, own_files
from data.look import Seen, look_at
from data.own_files import OwnFiles
from data.own_source import TEST_SHARE, testing_list
from data.partition import client_names, natural_clients, whole_in_test
from data.spec import DatasetSpec
from data.splits import splits_of

Counts = NDArray[np.int64]
RUNNING_TEXT = "runs of words"
"""Stands for the classes of a text that has none."""


@dataclass(frozen=True)
class Found:
    """What lies in files of one's own, usable or not."""

    files: OwnFiles
    classes: Counter[str] = field(default_factory=Counter)
    """How many training examples there are of each, before any is held out."""
    seen: Seen | None = None
    """What images are like."""
    left_out: int = 0
    """Rows of numbers that are in no window."""


@dataclass(frozen=True)
class Dealt:
    """How a partition deals training examples out."""

    counts: Counts
    """[clients, classes]."""
    names: tuple[str, ...]
    """Of the clients: their numbers, or as the data calls them."""
    there: int
    """How many clients the data has by nature; else as many as there are."""
    in_test: tuple[str, ...] = ()
    """Who is no client, since all its examples are held out for the test."""

    def only_one_has(self) -> dict[int, int]:
        """Return the classes that a single client has, and that client."""
        holders = (self.counts > 0).sum(0)
        return {
            label: int(self.counts[:, label].argmax())
            for label in np.flatnonzero(holders == 1).tolist()
        }

    def nobody_has(self) -> list[int]:
        """Return the classes that no client has."""
        missing: list[int] = np.flatnonzero(self.counts.sum(0) == 0).tolist()
        return missing


def found_in(spec: DatasetSpec) -> Found:
    """Look at one's own files; broken ones are left to `broken_in`."""
    files = own_files(spec)
    try:
        train = listed(files, "train", spec)
    except BrokenFilesError:
        train = None
    if train is None:
        return Found(files)
    classes = Counter(label for label in train.labels if label is not None)
    if spec.holds != "images":
        return Found(files, classes, left_out=train.left_out)
    return Found(files, classes, look_at(train))


def broken_in(spec: DatasetSpec) -> dict[Broken, None]:
    """Return all that is wrong with one's own files, in order; each image is decoded for that."""
    files, found = own_files(spec), dict[Broken, None]()
    for purpose in get_args(Purpose):
        try:
            examples = listed(files, purpose, spec)
        except BrokenFilesError as error:
            found |= dict.fromkeys(error.broken)
            continue
        if examples is None:
            continue
        found |= dict.fromkeys(examples.broken)
        if spec.holds == "images" and not isinstance(examples.inputs, np.ndarray):
            found |= dict.fromkeys(undecodable(examples.inputs, examples.place))
        if purpose == "test" and any(label is not None for label in examples.labels):
            break  # nothing is read for validation
    return found


def test_part(spec: DatasetSpec) -> str:
    """Return the origin of the test examples of one's own data."""
    if testing_list(own_files(spec), spec) is not None:
        return "of its own files"
    share = TEST_SHARE if spec.test_share is None else spec.test_share
    what = "each class" if spec.test_column is None else f"all that {spec.test_column} tells apart"
    return f"held out: {share:g} of {what}, drawn by test_seed {spec.test_seed or 0}"


def class_counts(labels: Counts, spec: DatasetSpec) -> list[int]:
    """Return the number of examples of each class."""
    counted: list[int] = np.bincount(labels, minlength=len(class_names(spec))).tolist()
    return counted


def class_names(spec: DatasetSpec) -> tuple[str, ...]:
    """Return the names of the classes; those of a running text are its words, and not told."""
    return spec.facts.classes or (RUNNING_TEXT,)


def labels_of_split(split: Split, spec: DatasetSpec) -> Counts:
    """Return the class of each example: all of a running text count as one."""
    return split.labels if spec.facts.classes else np.zeros(len(split.labels), np.int64)


def dealt(spec: DatasetSpec) -> Dealt:
    """Return the number of examples of each class that each simulated client gets."""
    labels = labels_of_split(splits_of(spec).train, spec)
    counts = np.array([class_counts(labels[rows], spec) for rows in client_rows(spec)])
    if not spec.is_natural:
        return Dealt(counts, tuple(map(str, range(spec.clients))), spec.clients)
    return Dealt(counts, client_names(spec), natural_clients(spec), whole_in_test(spec))


def notes(spec: DatasetSpec, parted: Dealt) -> list[str]:
    """Return notes on clients that are left out, and on classes that one client has, or none."""
    names, clients, told = class_names(spec), parted.names, []
    if parted.there > len(clients):
        told.append(
            f"{len(clients)} of the data's {parted.there} clients take part, drawn by the seed"
        )
    if parted.in_test:
        told.append(f"held out for the test with all examples: {_few(list(parted.in_test))}")
    alone = parted.only_one_has() if len(clients) > 1 else {}
    if alone:
        who = [f"{names[label]} ({clients[client]})" for label, client in alone.items()]
        told.append(f"only one client has: {_few(who)}")
    if nobody := parted.nobody_has():
        told.append(f"no client has: {_few([names[label] for label in nobody])}")
    return told


def _few(texts: list[str]) -> str:
    more = len(texts) - MOST_SHOWN
    return ", ".join(texts[:MOST_SHOWN]) + (f" and {more} more" if more > 0 else "")
