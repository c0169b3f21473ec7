"""Clients that the data has by nature: whoever wrote it, or a folder for each."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from data.catalog import PartitionError
from data.own_source import Owners, own_owners
from data.spec import DatasetSpec

WHO_TAKES_PART = 2**31 + 1
"""Tells the draw of clients from other draws of a seed."""


def natural_clients(spec: DatasetSpec) -> int:
    """Return how many clients the data has."""
    return len(own_owners(spec).names)


def client_names(spec: DatasetSpec) -> tuple[str, ...]:
    """Return the clients' names in the order of their numbers, which the seed draws.

    So what a client can hold, which goes by its number, does not go by its name.
    """
    names = own_owners(spec).names
    return tuple(names[place] for place in _drawn(spec, names))


def natural_parts(spec: DatasetSpec, owners: Owners) -> list[NDArray[np.int64]]:
    """Return the rows of each client, in the order of their numbers."""
    order = np.argsort(owners.of_rows, kind="stable")
    ends = np.cumsum(np.bincount(owners.of_rows, minlength=len(owners.names)))
    rows = np.split(order, ends[:-1])
    return [rows[place] for place in _drawn(spec, owners.names)]


def _drawn(spec: DatasetSpec, names: tuple[str, ...]) -> list[int]:
    if spec.clients > len(names):
        raise PartitionError(
            f"clients is {spec.clients}, but the data has {len(names)}: expected no more"
        )
    rng = np.random.default_rng((spec.seed, WHO_TAKES_PART))
    drawn: list[int] = rng.permutation(len(names))[: spec.clients].tolist()
    return drawn
