"""Clients that the data has by nature: whoever wrote it, or a folder for each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from data.catalog import DataError, PartitionError
from data.own_source import Owners, own_owners
from data.spec import DatasetSpec

WHO_TAKES_PART = 2**31 + 1
"""Tells the draw of clients from other draws of a seed."""


def require_examples(spec: DatasetSpec, owners: Owners, parts: Sequence[NDArray[np.int64]]) -> None:
    """Raise where a client has too few examples, before or after some were left to others.

    It names the client, so it is no `PartitionError`, which a device's server is told.
    """
    sizes = [len(part) for part in parts]
    smallest = min(sizes)
    if smallest >= spec.min_examples:
        return
    drawn = _drawn(spec, owners)
    there = np.bincount(owners.of_rows, minlength=len(owners.names))
    name, has = owners.names[drawn[sizes.index(smallest)]], there[drawn[sizes.index(smallest)]]
    few = sum(size < spec.min_examples for size in sizes)
    more = f" (so do {few - 1} more clients)" if few > 1 else ""
    if smallest == has:
        raise DataError(
            f"client {name!r} has {has} training examples, fewer than dataset.min_examples "
            f"{spec.min_examples}{more}: lower that, or leave such clients out of the data"
        )
    whole = spec.max_train is None or spec.max_train >= len(owners.of_rows)
    taken = [] if whole else [f"dataset.max_train={spec.max_train}"]
    change = [] if whole else ["raise dataset.max_train or set it to null"]
    if spec.server:
        taken.append(f"dataset.server={spec.server:g}")
        change.append("lower dataset.server")
    raise DataError(
        f"{' and '.join(taken)} leaves client {name!r} {smallest} of its {has} training examples"
        f"{more}: expected at least {spec.min_examples}; {', or '.join(change)}"
    )


def natural_clients(spec: DatasetSpec) -> int:
    """Return how many clients the data has."""
    return len(own_owners(spec).names)


def client_names(spec: DatasetSpec) -> tuple[str, ...]:
    """Return the clients' names in the order of their numbers, which the seed draws.

    So what a client can hold, which goes by its number, does not go by its name.
    """
    owners = own_owners(spec)
    return tuple(owners.names[place] for place in _drawn(spec, owners))


def whole_in_test(spec: DatasetSpec) -> tuple[str, ...]:
    """Return who would be a client, were not all its examples held out for the test."""
    return own_owners(spec).held_out


def natural_parts(spec: DatasetSpec, owners: Owners) -> list[NDArray[np.int64]]:
    """Return the rows of each client, in the order of their numbers."""
    order = np.argsort(owners.of_rows, kind="stable")
    ends = np.cumsum(np.bincount(owners.of_rows, minlength=len(owners.names)))
    rows = np.split(order, ends[:-1])
    return [rows[place] for place in _drawn(spec, owners)]


def require_clients(setting: str, clients: int, owners: Owners) -> None:
    """Raise where more clients are asked for than there are; no name is told, a device asks too."""
    there, gone = len(owners.names), len(owners.held_out)
    if clients <= there:
        return
    test = f" with examples to train on (all examples of {gone} more are held out for the test)"
    raise PartitionError(
        f"{setting} is {clients}, but the data has {there}{test if gone else ''}: expected no more"
    )


def _drawn(spec: DatasetSpec, owners: Owners) -> list[int]:
    require_clients("clients", spec.clients, owners)
    rng = np.random.default_rng((spec.seed, WHO_TAKES_PART))
    drawn: list[int] = rng.permutation(len(owners.names))[: spec.clients].tolist()
    return drawn
