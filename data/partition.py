"""Deal training examples out to the clients, by the partitioners of flwr-datasets or by nature."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from data.catalog import DataError, PartitionError
from data.own_source import Owners, own_owners
from data.spec import DatasetSpec

if TYPE_CHECKING:
    from flwr_datasets.partitioner import Partitioner


Rows = NDArray[np.int64]
LOCAL_TEST = 2**31
"""Tells the draws of clients' tests from those of their parts, which go by (seed, client), too."""


def partition(
    spec: DatasetSpec, labels: NDArray[np.int64], owners: Owners | None = None
) -> list[Rows]:
    """Return each client's rows of `labels`: disjoint, and a function of the spec alone.

    The `owners` are those of natural partitions.
    """
    rng = np.random.default_rng(spec.seed)
    rows, _ = _shuffled(spec, len(labels), rng)
    if owners is None and len(rows) < spec.clients * spec.min_examples:
        raise PartitionError(
            f"{len(rows)} training examples are too few for {spec.clients} clients "
            f"with at least {spec.min_examples} each; lower clients or min_examples"
        )
    if owners is not None:
        parts = natural_parts(spec, owners._replace(of_rows=owners.of_rows[rows]))
        require_examples(spec, owners, parts)
    else:
        parts = _deal(spec, labels[rows], rng)
    smallest = min(len(part) for part in parts)
    if smallest < spec.min_examples:
        raise PartitionError(
            f"partition {spec.partition} leaves a client with {smallest} examples, fewer than "
            f"min_examples {spec.min_examples}; lower clients, or deal them out less skewed"
        )
    if spec.partition == "shares" or spec.is_natural:  # which go by the clients' numbers
        return [rows[part] for part in parts]
    # Shuffled again, because some partitioners make classes or sizes depend on the client's number,
    # and so may the capacity of a simulated device.
    return [rows[parts[place]] for place in rng.permutation(spec.clients)]


def server_rows(spec: DatasetSpec, examples: int) -> Rows:
    """Return the rows of the training split that the server keeps, in an order by chance.

    They are drawn without a look at the labels.
    """
    _, kept = _shuffled(spec, examples, np.random.default_rng(spec.seed))
    return kept


def _shuffled(spec: DatasetSpec, examples: int, rng: np.random.Generator) -> tuple[Rows, Rows]:
    """Return the rows to deal out, and those that the server keeps.

    They are shuffled, because some partitioners deal out runs of neighbours.
    """
    rows = rng.permutation(examples)[: spec.max_train]
    dealt = len(rows) - round(len(rows) * (spec.server or 0.0))
    return rows[:dealt], rows[dealt:]


def _deal(
    spec: DatasetSpec, labels: NDArray[np.int64], rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Return positions in `labels` for each place, by the partitioner the spec names."""
    if spec.partition == "classes" and spec.examples_per_client:
        return _equal_classes(spec, labels, rng)
    import datasets

    partitioner = _partitioner(spec, len(labels), rng)
    table = {"label": labels, "position": np.arange(len(labels))}
    # In Arrow's format the partitioners read the labels at once, in others row by row.
    partitioner.dataset = datasets.Dataset.from_dict(table).with_format("arrow")
    try:
        with warnings.catch_warnings():  # a retry that works is no news, one that fails raises
            warnings.filterwarnings("ignore", module="flwr_datasets")
            return [
                partitioner.load_partition(place)["position"].to_numpy()
                for place in range(spec.clients)
            ]
    except ValueError as error:
        raise PartitionError(
            f"partition {spec.partition} of {len(labels)} examples among {spec.clients} clients "
            f"with {_skew(spec)} failed; lower clients or min_examples, or ask for less skew "
            f"(flwr-datasets: {error})"
        ) from error


def _partitioner(spec: DatasetSpec, examples: int, rng: np.random.Generator) -> Partitioner:
    from flwr_datasets.partitioner import (
        DirichletPartitioner,
        IidPartitioner,
        PathologicalPartitioner,
        SizePartitioner,
    )

    if spec.partition == "iid":
        return IidPartitioner(num_partitions=spec.clients)
    if spec.partition == "dirichlet":
        return DirichletPartitioner(
            num_partitions=spec.clients,
            partition_by="label",
            alpha=float(spec.alpha),
            min_partition_size=spec.min_examples,
            seed=spec.seed,
        )
    if spec.partition == "classes":
        return PathologicalPartitioner(
            num_partitions=spec.clients,
            partition_by="label",
            num_classes_per_partition=spec.classes_per_client,
            class_assignment_mode="first-deterministic",  # no class is lost for want of a client
            seed=spec.seed,
        )
    if spec.partition == "uneven":
        return SizePartitioner(_uneven_sizes(spec, examples, rng).tolist())
    if spec.partition == "shares":
        shares = np.array(spec.shares)
        return SizePartitioner(apportioned(examples, shares / shares.sum()).tolist())
    # Quantity skew of Li et al., arXiv:2102.02079: sizes ~ Dirichlet(alpha).
    shares = rng.dirichlet(np.full(spec.clients, spec.alpha))
    spare = examples - spec.clients * spec.min_examples
    return SizePartitioner((spec.min_examples + rng.multinomial(spare, shares)).tolist())


def _uneven_sizes(spec: DatasetSpec, examples: int, rng: np.random.Generator) -> Rows:
    """Return the examples of each place: within a factor of two, or in the range given."""
    if spec.examples_per_client is None:
        ends = np.cumsum(rng.uniform(1, 2, spec.clients))
        rounded: Rows = np.round(examples * ends / ends[-1]).astype(np.int64)
        return rounded - np.concatenate(([0], rounded[:-1]))
    fewest, most = spec.examples_per_client
    sizes = rng.integers(fewest, most, spec.clients, endpoint=True)
    if sizes.sum() > examples:
        raise PartitionError(
            f"examples_per_client {[fewest, most]} comes to {sizes.sum()} examples for "
            f"{spec.clients} clients, of {examples} there are; lower it, or clients"
        )
    return sizes


def _equal_classes(
    spec: DatasetSpec, labels: NDArray[np.int64], rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Return for each place equally many examples, to within one, of some classes.

    They are those with most examples left, so that none runs out while others are unused.
    """
    left = [np.flatnonzero(labels == each) for each in range(spec.facts.num_classes)]
    parts = []
    for size in _uneven_sizes(spec, len(labels), rng):
        counts = np.array([len(rows) for rows in left])
        chosen = np.lexsort((rng.random(len(left)), -counts))[: spec.classes_per_client]
        shares = [len(share) for share in np.array_split(np.empty(size), len(chosen))]
        part = []
        for number, share in zip(chosen, shares, strict=True):
            rows = left[number]
            if share > len(rows):
                raise PartitionError(
                    f"classes_per_client {spec.classes_per_client} and examples_per_client "
                    f"{list(spec.examples_per_client or ())} ask for {share} examples of a class "
                    f"of which {len(rows)} are left; lower them, or clients"
                )
            part.append(rows[:share])
            left[number] = rows[share:]
        parts.append(np.concatenate(part))
    return parts


def _skew(spec: DatasetSpec) -> str:
    if spec.partition == "classes":
        return f"classes_per_client {spec.classes_per_client}"
    return f"alpha {spec.alpha} and min_examples {spec.min_examples}"


def split_parts(rows: Rows, spec: DatasetSpec, stream: int) -> tuple[Rows, Rows, Rows]:
    """Part a client's rows into train, validation and test; at least one is left to train on.

    Where clients test on the data set's test split, none of their own is for that.
    """
    shuffled = np.random.default_rng((spec.seed, stream)).permutation(rows)
    share = spec.test if spec.local_test == "own" else 0.0
    validation, test = int(len(rows) * spec.validation), int(len(rows) * share)
    return (
        shuffled[validation + test :],
        shuffled[:validation],
        shuffled[validation : validation + test],
    )


def like_a_client(
    own: NDArray[np.int64], test: NDArray[np.int64], spec: DatasetSpec, stream: int
) -> Rows:
    """Return rows of the test split with classes as often as among a client's own labels.

    Of all its classes that the split has there are enough for their proportions: so they are fewer
    than asked for, where it has few of one.
    """
    classes, counts = np.unique(own[np.isin(own, test)], return_counts=True)
    rows = [np.flatnonzero(test == each) for each in classes]
    shares = counts / counts.sum()
    room = [len(there) / share for there, share in zip(rows, shares, strict=True)]
    wanted = int(min(spec.local_test_examples, *room)) if room else 0
    rng = np.random.default_rng((spec.seed, stream, LOCAL_TEST))
    drawn = [
        rng.permutation(there)[:count]
        for there, count in zip(rows, apportioned(wanted, shares), strict=True)
    ]
    return np.sort(np.concatenate(drawn)) if drawn else np.empty(0, np.int64)


def apportioned(total: int, shares: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return whole numbers that come to a total: the largest remainders are rounded up."""
    quotas = np.round(total * shares, 9)
    counts = np.floor(quotas).astype(np.int64)
    counts[np.argsort(counts - quotas, kind="stable")[: total - counts.sum()]] += 1
    return counts


# --- clients that the data has by nature


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
    """Return the number of clients that the data has."""
    return len(own_owners(spec).names)


def client_names(spec: DatasetSpec) -> tuple[str, ...]:
    """Return the clients' names in the order of their numbers, which the seed draws.

    So what a client can hold, which goes by its number, does not go by its name.
    """
    owners = own_owners(spec)
    return tuple(owners.names[place] for place in _drawn(spec, owners))


def whole_in_test(spec: DatasetSpec) -> tuple[str, ...]:
    """Return the clients left out since all their examples are held out for the test."""
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
