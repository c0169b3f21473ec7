"""Measures the accuracy of a system of nodes that pass uncertain samples on to their parents.

A node answers the samples that its exit is most certain of, at the share that its rates give (CIS,
Section 4.2). The others go on to its parents.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.partition import apportioned
from inference.topology import Topology

Samples = NDArray[np.int64]


@dataclass(frozen=True)
class Served:
    """The result of serving samples in a system."""

    right: int
    answered: dict[str, int]
    """Number of samples that each node answered."""

    @property
    def accuracy(self) -> float:
        """Share of right answers."""
        return self.right / sum(self.answered.values())


def serve(topology: Topology, confidence: Tensor, right: Tensor, seed: int = 0) -> Served:
    """Answer samples at the nodes' rates, from each exit's confidence and hits, [exits, samples].

    Samples arrive at nodes in proportion to the arrival rates, in a random order.
    """
    exits, count = confidence.shape
    if exits != topology.exits or count == 0:
        raise ValueError(
            f"{exits} exits and {count} samples: expected {topology.exits} exits, as the nodes "
            "have, and at least one sample"
        )
    chance = np.random.default_rng(seed)
    arrivals = np.array([node.arrival for node in topology.nodes])
    first = _dealt(chance.permutation(count), arrivals / arrivals.sum())
    waiting = {n.name: [part] for n, part in zip(topology.nodes, first, strict=True)}
    hits, answered = 0, {}
    # Children come before their parents, so that all of a node's samples are there.
    for node in topology.upwards:
        samples, rates = np.concatenate(waiting[node.name]), topology.rates[node.name]
        unsure_first = torch.argsort(confidence[node.exit - 1, samples], stable=True).numpy()
        leaving = round(len(samples) * rates.forwarded)
        forwarded, kept = np.split(samples[unsure_first], [leaving])
        hits += int(right[node.exit - 1, kept].sum())
        answered[node.name] = len(kept)
        shares = np.array([node.divided[parent] for parent in node.parents])
        parts = _dealt(chance.permutation(forwarded), shares) if node.parents else []
        for parent, part in zip(node.parents, parts, strict=True):
            waiting[parent].append(part)
    return Served(hits, answered)


def _dealt(samples: Samples, shares: NDArray[np.float64]) -> list[Samples]:
    """Divide samples by the shares, to within one."""
    return np.split(samples, np.cumsum(apportioned(len(samples), shares))[:-1])
