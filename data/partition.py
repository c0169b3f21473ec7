"""Deals training examples out to the clients, by the partitioners of flwr-datasets."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from data.catalog import DataError
from data.spec import DatasetSpec

if TYPE_CHECKING:
    from flwr_datasets.partitioner import Partitioner

Rows = NDArray[np.int64]


def partition(spec: DatasetSpec, labels: NDArray[np.int64]) -> list[Rows]:
    """Return each client's rows of `labels`: disjoint, and a function of the spec alone."""
    rng = np.random.default_rng(spec.seed)
    # Shuffled first, because some partitioners deal out runs of neighbours.
    rows = rng.permutation(len(labels))[: spec.max_train]
    if len(rows) < spec.clients * spec.min_examples:
        raise DataError(
            f"{len(rows)} training examples are too few for {spec.clients} clients "
            f"with at least {spec.min_examples} each; lower clients or min_examples"
        )
    parts = _deal(spec, labels[rows], rng)
    smallest = min(len(part) for part in parts)
    if smallest < spec.min_examples:
        raise DataError(
            f"partition {spec.partition} leaves a client with {smallest} examples, fewer than "
            f"min_examples {spec.min_examples}; lower clients, or deal them out less skewed"
        )
    # Shuffled again, because some partitioners make classes or sizes depend on the client's number,
    # and so may the capacity of a simulated device.
    return [rows[parts[place]] for place in rng.permutation(spec.clients)]


def _deal(
    spec: DatasetSpec, labels: NDArray[np.int64], rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Return positions in `labels` for each place, by the partitioner the spec names."""
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
        raise DataError(
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
    # Quantity skew of Li et al., arXiv:2102.02079: sizes ~ Dirichlet(alpha).
    shares = rng.dirichlet(np.full(spec.clients, spec.alpha))
    spare = examples - spec.clients * spec.min_examples
    return SizePartitioner((spec.min_examples + rng.multinomial(spare, shares)).tolist())


def _skew(spec: DatasetSpec) -> str:
    if spec.partition == "classes":
        return f"classes_per_client {spec.classes_per_client}"
    return f"alpha {spec.alpha} and min_examples {spec.min_examples}"


def split_parts(rows: Rows, spec: DatasetSpec, stream: int) -> tuple[Rows, Rows, Rows]:
    """Part a client's rows into train, validation and test; at least one is left to train on."""
    shuffled = np.random.default_rng((spec.seed, stream)).permutation(rows)
    validation, test = int(len(rows) * spec.validation), int(len(rows) * spec.test)
    return (
        shuffled[validation + test :],
        shuffled[:validation],
        shuffled[validation : validation + test],
    )
