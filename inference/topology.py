"""The nodes of a collaborative inference system, with the rates of requests between them.

Kaplan et al., "Federated Learning for Collaborative Inference Systems" (CIS), Section 3.1. Requests
arrive at nodes. A node answers some of them at its exit, and transfers the others to its parents,
which have later exits. Later exits are better, so nodes transfer as many as they may.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from data.partition import apportioned

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Form of a node's name, which also names a folder and the source of an answer."""


class TopologyError(ValueError):
    """An invalid system of nodes; the one-sentence text names the node."""


@dataclass(frozen=True)
class Node:
    """A node with its exit, its parents and its rates, in requests per second."""

    name: str
    exit: int
    """Number of the exit at which it answers, counted from 1."""
    parents: tuple[str, ...] = ()
    """Nodes to which it transfers requests; a node without parents answers all of them."""
    shares: tuple[float, ...] = ()
    """Division of the transfers over several parents, relative to each other; empty: equal."""
    arrival: float = 0.0
    """Requests per second that arrive here first."""
    max_transfer: float | None = None
    """Most requests per second that it may transfer; default (None): all."""

    @property
    def divided(self) -> dict[str, float]:
        """Share of the transfers that each parent gets."""
        shares = self.shares or (1.0,) * len(self.parents)
        return {p: share / sum(shares) for p, share in zip(self.parents, shares, strict=True)}


@dataclass(frozen=True)
class Rates:
    """The rates of a node, in requests per second: Eqs. (2) and (3)."""

    incoming: float
    transfer: float

    @property
    def serving(self) -> float:
        """Requests per second that the node answers itself."""
        return self.incoming - self.transfer

    @property
    def forwarded(self) -> float:
        """Share of the incoming requests that it transfers: 1 - f of the paper."""
        return self.transfer / self.incoming if self.incoming else 0.0


@dataclass(frozen=True)
class Serving:
    """The division of requests over the exits that answer them: x-y-z in the paper."""

    parts: tuple[float, ...]
    """Part of each exit, relative to the others."""

    @classmethod
    def read(cls, text: str) -> Serving:
        """Return the setting of a text such as 80-15-5."""
        try:
            parts = tuple(float(part) for part in text.split("-"))
        except ValueError:
            parts = ()
        if not parts or not all(map(math.isfinite, parts)) or sum(parts) == 0:
            raise TopologyError(
                f"serving is {text!r}: expected a number for each exit, such as 80-15-5"
            )
        return cls(parts)

    @property
    def shares(self) -> tuple[float, ...]:
        """Share of the requests that each exit answers."""
        return tuple(part / sum(self.parts) for part in self.parts)

    def __str__(self) -> str:
        return "-".join(f"{part:g}" for part in self.parts)


PAPERS_SERVING = tuple(
    map(
        Serving.read,
        ("80-15-5", "60-30-10", "45-35-20", "33-33-33", "20-35-45", "10-30-60", "5-15-80"),
    )
)
"""The seven settings of the paper's Table 1."""


@dataclass(frozen=True)
class Topology:
    """The nodes of a system: a tree, or any graph without cycles."""

    nodes: tuple[Node, ...]

    def __post_init__(self) -> None:
        _check(self.nodes)

    @cached_property
    def named(self) -> dict[str, Node]:
        """The nodes by name."""
        return {node.name: node for node in self.nodes}

    @property
    def exits(self) -> int:
        """Number of exits: that of the nodes' last exit."""
        return max(node.exit for node in self.nodes)

    @cached_property
    def upwards(self) -> tuple[Node, ...]:
        """The nodes, each after all nodes that transfer to it."""
        return tuple(self.named[name] for name in _sorter(self.nodes).static_order())

    @cached_property
    def rates(self) -> dict[str, Rates]:
        """Rates of each node, which transfers as much as it may (footnote 2 of the paper)."""
        incoming = {node.name: node.arrival for node in self.nodes}
        found = {}
        for node in self.upwards:
            most = math.inf if node.max_transfer is None else node.max_transfer
            transfer = min(most, incoming[node.name]) if node.parents else 0.0
            found[node.name] = Rates(incoming[node.name], transfer)
            for parent, share in node.divided.items():
                incoming[parent] += transfer * share
        return {node.name: found[node.name] for node in self.nodes}

    @property
    def exit_rates(self) -> tuple[float, ...]:
        """Requests per second that the nodes of each exit answer together: Lambda of Eq. (5)."""
        return tuple(
            math.fsum(self.rates[node.name].serving for node in self.nodes if node.exit == number)
            for number in range(1, self.exits + 1)
        )

    @property
    def exit_shares(self) -> tuple[float, ...]:
        """Share of all requests that each exit answers."""
        total = math.fsum(self.exit_rates)
        return tuple(rate / total for rate in self.exit_rates)

    def serving(self, setting: Serving) -> Topology:
        """Return the nodes with transfer rates by which their exits answer these shares.

        All nodes of an exit transfer the same share of their incoming requests.
        """
        if len(setting.parts) != self.exits:
            raise TopologyError(
                f"serving is {setting}: expected {self.exits} numbers, one for each exit"
            )
        limited, incoming = {}, {node.name: node.arrival for node in self.nodes}
        for node in self.upwards:
            here, above = sum(setting.parts[node.exit - 1 :]), sum(setting.parts[node.exit :])
            most = incoming[node.name] * above / here if here else 0.0
            if node.max_transfer is not None and most > node.max_transfer * (1 + 1e-9):
                raise TopologyError(
                    f"serving is {setting}, for which node {node.name!r} would transfer {most:g}, "
                    f"more than its max_transfer {node.max_transfer:g}"
                )
            limited[node.name] = replace(node, max_transfer=most)
            for parent, share in node.divided.items():
                incoming[parent] += most * share
        found = Topology(tuple(limited[node.name] for node in self.nodes))
        reached = zip(found.exit_shares, setting.shares, strict=True)
        if any(abs(share - asked) > 1e-9 for share, asked in reached):
            come_to = "-".join(f"{100 * share:.3g}" for share in found.exit_shares)
            raise TopologyError(
                f"serving is {setting}, but these nodes come to {come_to}: where requests arrive "
                "at later exits, or pass one over, give nodes max_transfer instead"
            )
        return found

    def papers_settings(self) -> dict[Serving, Topology]:
        """Return the nodes under each of the paper's settings that fits them."""
        found = {}
        for setting in PAPERS_SERVING:
            with suppress(TopologyError):
                found[setting] = self.serving(setting)
        return found


def _check(nodes: Sequence[Node]) -> None:
    """Raise `TopologyError` for the first invalid node."""
    if not nodes:
        raise TopologyError("no nodes: expected at least one")
    names = Counter(node.name for node in nodes)
    for node in nodes:
        if not NAME.fullmatch(node.name):
            raise TopologyError(
                f"a node has the name {node.name!r}: expected up to 64 letters, digits, '-', '_' "
                "and '.', a letter or digit first"
            )
        if names[node.name] > 1:
            raise TopologyError(f"two nodes have the name {node.name!r}")
        _check_numbers(node)
        for parent in node.parents:
            if parent not in names:
                raise TopologyError(
                    f"node {node.name!r} has the parent {parent!r}, which is none of the nodes: "
                    f"choose from {', '.join(names)}"
                )
    try:
        order = list(_sorter(nodes).static_order())
    except CycleError as error:
        circle = " -> ".join(reversed(error.args[1]))
        raise TopologyError(f"requests would go round in a circle: {circle}") from None
    by_name = {node.name: node for node in nodes}
    for node in nodes:
        for parent in node.parents:
            if by_name[parent].exit <= node.exit:
                raise TopologyError(
                    f"node {node.name!r} has exit {node.exit}, but its parent {parent!r} has exit "
                    f"{by_name[parent].exit}: expected a later one"
                )
    _check_reached([by_name[name] for name in order])


def _check_numbers(node: Node) -> None:
    if node.exit < 1:
        raise TopologyError(f"node {node.name!r} has exit {node.exit}: expected 1 or more")
    for what, rate in (("arrival", node.arrival), ("max_transfer", node.max_transfer)):
        if rate is not None and not 0 <= rate < math.inf:
            raise TopologyError(
                f"node {node.name!r} has {what} {rate:g}: expected requests per second, 0 or more"
            )
    if len(set(node.parents)) != len(node.parents):
        raise TopologyError(f"node {node.name!r} has a parent twice: {', '.join(node.parents)}")
    positive = all(0 < share < math.inf for share in node.shares)
    if node.shares and (len(node.shares) != len(node.parents) or not positive):
        raise TopologyError(
            f"node {node.name!r} has shares {list(node.shares)}: expected a number above 0 for "
            f"each of its {len(node.parents)} parents"
        )


def _check_reached(upwards: Sequence[Node]) -> None:
    reached = {node.name for node in upwards if node.arrival}
    for node in upwards:
        if node.name not in reached:
            raise TopologyError(
                f"no request reaches node {node.name!r}: expected an arrival rate above 0 at it, "
                "or at a node below it"
            )
        reached.update(node.parents)


def _sorter(nodes: Sequence[Node]) -> TopologicalSorter[str]:
    below: dict[str, list[str]] = {node.name: [] for node in nodes}
    for node in nodes:
        for parent in node.parents:
            below[parent].append(node.name)
    return TopologicalSorter(below)


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
