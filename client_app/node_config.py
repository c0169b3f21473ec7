"""Reads the SuperNode's node config: the settings of a device's owner.

budget=0.25                        share of the full model that the device affords
partition-id=0 num-partitions=3    its number, and its part of the data sets that it holds
data="/data/photos"                its own files, whatever data set a run names
data.cifar10="/data/cifar"         its files of one data set, and so on for others; data.folder
                                   and data.table are for runs on the user's images and tables
tokenizer="/models/minilm"         the one for runs that want a pre-trained one
allow="hub,package,compile"        permissions of a run, besides training (client_app/offers.py)
code="..."                         the code that it is willing to run (nestfl/guarded)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from data.spec import DATA_SETS
from protocol.environment import DEVICE
from protocol.reading import number, shown, whole

KEYS = ("allow", "budget", "code", "data", "num-partitions", "partition-id", "tokenizer")
NAMED = "data."
"""Prefix of the key for one data set's files."""
ALLOWED = ("hub", "package", "compile")
"""Permissions that an owner may give: to download from Hugging Face, to use files of an
installed Python package, and to let torch write, compile and run code for the network."""


class NodeConfigError(ValueError):
    """A node config that cannot be read."""


@dataclass(frozen=True)
class NodeConfig:
    """The owner's settings; a simulated client has its partition only."""

    deployed: bool = False
    """True for a device of its own, false for a client of a simulation."""
    budget: float | None = None
    partition: int | None = None
    partitions: int | None = None
    data: str | None = None
    """Path of its own files, for any data set that a run names."""
    named_data: Mapping[str, str] = field(default_factory=dict)
    """Paths of its files, by the data set's name."""
    tokenizer: str | None = None
    allowed: frozenset[str] = frozenset()

    @classmethod
    def read(cls, given: Mapping[str, object]) -> NodeConfig:
        """Return the owner's settings; on a deployed device an unknown key is an error."""
        deployed = bool(os.environ.get(DEVICE))
        if deployed:
            _check_keys(given)
        return cls(
            deployed,
            number(given["budget"], "budget") if "budget" in given else None,
            whole(given["partition-id"], "partition-id") if "partition-id" in given else None,
            whole(given["num-partitions"], "num-partitions", 1)
            if "num-partitions" in given
            else None,
            _text(given, "data"),
            {key.removeprefix(NAMED): str(_text(given, key)) for key in given if _is_named(key)},
            _text(given, "tokenizer"),
            _words(_text(given, "allow")),
        )

    def files_of(self, dataset: str) -> str | None:
        """Return the path of this device's files of a data set; None if it offers none."""
        return self.named_data.get(dataset, self.data)

    @property
    def holds_parts(self) -> bool:
        """True if it holds a part of shared data sets instead of files of its own."""
        return self.data is None and None not in (self.partition, self.partitions)


def _is_named(key: str) -> bool:
    return key.startswith(NAMED)


def _check_keys(given: Mapping[str, object]) -> None:
    for key in given:
        if _is_named(key) and key.removeprefix(NAMED) not in DATA_SETS:
            raise NodeConfigError(
                f"the node config has {shown(key)}, which is no data set: choose from "
                f"{', '.join(DATA_SETS)}"
            )
        if not _is_named(key) and key not in KEYS:
            raise NodeConfigError(
                f"the node config has {shown(key)}, which is no key: choose from "
                f"{', '.join(KEYS)}, {NAMED}NAME"
            )


def _text(given: Mapping[str, object], key: str) -> str | None:
    found = given.get(key)
    if found is None or (isinstance(found, str) and (found or key == "allow")):
        return found
    raise NodeConfigError(
        f'{key} is {shown(found)}: expected a text in quotes, such as {key}="..."'
    )


def _words(given: str | None) -> frozenset[str]:
    words = frozenset((given or "").replace(",", " ").split())
    for word in sorted(words - {*ALLOWED}):
        raise NodeConfigError(
            f"allow is {shown(given)}: {shown(word)} is none of {', '.join(ALLOWED)}, of which it "
            "may have some, with commas between them"
        )
    return words
