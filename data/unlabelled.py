"""Examples without labels, for a server to distil with: of the run's data set, or of any other.

Those of another data set become what the run's network reads: images of its size and channels,
normalised as its own are; texts in its tokens. Labels are not looked at: in their place each
example has its number, by which what teachers answer for it is found again.
"""

from __future__ import annotations

from collections.abc import Collection, Sized
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from data.catalog import CATALOG, IMAGES, TEXTS, DataError
from data.clients import server_data
from data.examples import Examples, ImageData, TextData
from data.homes import with_home
from data.image_files import fitted
from data.inputs import read_unlabelled
from data.partition import Rows
from data.spec import DatasetSpec, image_facts, text_facts
from data.splits import load_images, load_texts

OWN, COUNTERPART, FILES = "own", "counterpart", "files"
"""In place of a data set's name: what the server keeps of the run's (`DatasetSpec.server`), the one
that ScaleFL takes, or whatever is found under the path."""
COUNTERPARTS = {"cifar10": "cifar100", "cifar100": "cifar10", "sst2": "ag-news", "ag-news": "sst2"}
"""Data sets whose training sets ScaleFL distils with each other (section 4.3)."""


@dataclass(frozen=True)
class UnlabelledSpec:
    """The examples that a server distils with."""

    name: str = OWN
    """A data set, `own`, `counterpart` or `files`."""
    path: str | None = None
    """Local files of it, on the server; None takes the bundled or the published data set."""
    max_examples: int | None = 50_000
    """Take no more than this many; what teachers answer for each is kept in memory."""

    def __post_init__(self) -> None:
        choices = (OWN, COUNTERPART, FILES, *CATALOG)
        if self.name not in choices:
            raise DataError(f"unknown name {self.name!r}; choose from {', '.join(choices)}")
        if self.name == FILES and self.path is None:
            raise DataError("path is null: expected a folder or a file, since name is files")
        if self.name == OWN and self.path is not None:
            raise DataError(f"path is {self.path}: expected null, since name is own")
        if self.max_examples is not None and self.max_examples < 2:
            raise DataError(f"max_examples is {self.max_examples}: expected at least 2")

    def source(self, run: DatasetSpec) -> str:
        """Return the name of the data set, or raise `DataError` if the run cannot read it."""
        if run.holds == "language":
            raise DataError(
                f"{run.name} is a running text: expected a data set of images or of texts with "
                "classes, since what is distilled are answers to whole examples"
            )
        if self.name in (OWN, FILES):
            return self.name
        if self.name == COUNTERPART and run.name not in COUNTERPARTS:
            raise DataError(
                f"name is counterpart, which {', '.join(COUNTERPARTS)} have, but not {run.name}: "
                "name a data set, or own"
            )
        name = COUNTERPARTS[run.name] if self.name == COUNTERPART else self.name
        known: dict[str, Collection[str]] = {"images": IMAGES, "tokens": TEXTS}
        kinds = tuple(known.get(run.holds, ()))
        if name not in kinds:
            raise DataError(
                f"name is {name}, which a network for {run.name} cannot read: choose from "
                f"{', '.join((OWN, FILES, *kinds))}"
            )
        if (name, self.path) == (run.name, run.path):
            raise DataError(
                f"name is {name}, whose training examples are the clients': choose own, which are "
                "examples that no client has, or another data set"
            )
        return name


def server_parts(run: DatasetSpec, validation: float) -> tuple[Examples, Examples]:
    """Return the examples that the server keeps: a share to validate on, and the rest."""
    kept = server_data(run)
    rows = torch.arange(len(kept))
    cut = round(len(kept) * validation)
    if validation and not cut:
        raise DataError(
            f"validation is {validation}, which of the {len(kept)} examples that the server keeps "
            "is none: expected more, or 0"
        )
    return kept.at(rows[:cut]), kept.at(rows[cut:])


def unlabelled(spec: UnlabelledSpec, run: DatasetSpec, validation: float = 0.0) -> Examples:
    """Return the examples as the run's network reads them, numbered in place of labels.

    Where there are more than are asked for, the run's seed draws them. Those of another data set
    are of its training split; `own` ones are what the server's `validation` part leaves.
    """
    source = spec.source(run)
    if source == OWN:
        found = _some(server_parts(run, validation)[1], spec.max_examples, run.seed)
    elif source == FILES:
        read = read_unlabelled(with_home(str(spec.path)), run)
        found = _some(read, spec.max_examples, run.seed)
    else:
        found = _of_another(source, spec, run)
    if len(found) < 2:
        raise DataError(f"{len(found)} examples to distil with in {source}: expected at least 2")
    return numbered(found)


def numbered(data: Examples) -> Examples:
    """Return the examples with their numbers in place of their labels."""
    this: Any = data
    made: Examples = replace(this, labels=torch.arange(len(data)))
    return made


def _of_another(source: str, spec: UnlabelledSpec, run: DatasetSpec) -> Examples:
    """Return training examples of another data set, prepared as the run's own are."""
    other = DatasetSpec(source, spec.path, tokenizer=run.tokenizer, max_tokens=run.max_tokens)
    if run.holds == "tokens":
        texts = load_texts(other).train
        rows = _drawn(texts.labels, spec.max_examples, run.seed)
        return TextData.of(texts, text_facts(run), rows)
    split, facts = load_images(other).train, image_facts(run)
    found = ImageData.of(split, facts, _drawn(split.labels, spec.max_examples, run.seed))
    return replace(found, images=fitted(found.images, facts.in_channels, facts.image_size))


def _some(data: Examples, most: int | None, seed: int) -> Examples:
    rows = _drawn(data.labels, most, seed)
    return data if rows is None else data.at(torch.from_numpy(rows))


def _drawn(examples: Sized, most: int | None, seed: int) -> Rows | None:
    """Return the rows of as many as are asked for; None takes all."""
    if most is None or len(examples) <= most:
        return None
    return np.sort(np.random.default_rng(seed).permutation(len(examples))[:most])
