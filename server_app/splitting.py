"""Splits a run's network into parts for nodes that answer requests together."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from data.catalog import ImageFacts, SeriesFacts
from inference.rate_thresholds import fit_node_thresholds, forwarded_shares
from inference.serving.node_part import Form, NodePart, write_part
from inference.topology import Node, Topology, TopologyError
from models.families import Features
from models.parts import Part, features_read
from server_app.predictor import Predictor, Watch, unwatched
from server_app.trained_level import TrainedRun

CHAIN = ("device", "edge", "cloud")
"""Names of the nodes in a chain of three."""


NEAR = 0.05
"""Tolerated difference between a node's share of forwarded samples and its rate."""


class SplitError(ValueError):
    """A run that cannot be split as asked; one sentence."""


@dataclass(frozen=True)
class SplitNode:
    """The files that were written for a node."""

    facts: NodePart
    weights: int
    """Bytes."""
    sends: int
    """Bytes of the features of one sample; 0 for a node without parent."""


def check_new(output: Path) -> None:
    """Raise if a folder exists already."""
    if output.exists():
        raise SplitError(f"{output} exists: give another --output")


def chain(exits: Sequence[int], forwarded: Sequence[float]) -> Topology:
    """Return a chain of nodes at these exits; each forwards its share of the samples it gets."""
    if len(forwarded) != len(exits) - 1 or not all(0 <= share <= 1 for share in forwarded):
        raise TopologyError(
            f"{len(exits)} nodes forward {list(forwarded)}: expected a share of 0 to 1 for each "
            "but the last"
        )
    names = CHAIN if len(exits) == len(CHAIN) else [f"node{n + 1}" for n in range(len(exits))]
    nodes, rate = [], 1.0
    for number, (name, place) in enumerate(zip(names, exits, strict=True)):
        arrival, parents = float(number == 0), tuple(names[number + 1 : number + 2])
        rate = rate * forwarded[number] if parents else rate
        nodes.append(Node(name, place, parents, arrival=arrival, max_transfer=rate))
    return Topology(tuple(nodes))


class Splitter:
    """A run's complete network, from which nodes get their parts."""

    def __init__(self, run: Path, best: bool = False, watch: Watch[Tensor] = unwatched) -> None:
        trained = TrainedRun(run, best)
        self.fleet, self.level = trained.fleet, trained.whole()
        if self.level.task.tells_words:
            raise SplitError(
                f"{run} trained a language model, which has an answer for every word: only what "
                "has one answer for each input can be served"
            )
        self.name = f"{trained.name}, round {self.level.round}"
        self.predictor = Predictor(self.level, 256, watch)
        self.net = self.predictor.frozen.cpu()
        self._behind = cache(self._features_behind)

    def thresholds(self, topology: Topology) -> dict[str, float]:
        """Return the thresholds that give the nodes' rates on the clients' validation data."""
        self._check(topology)
        return fit_node_thresholds(topology, self.predictor.scores)

    def unreached(self, topology: Topology, thresholds: Mapping[str, float]) -> list[str]:
        """Return a sentence for each node whose share on validation data differs from its rate."""
        shares = forwarded_shares(topology, thresholds, self.predictor.scores)
        wanted = {name: topology.rates[name].forwarded for name in shares}
        return [
            f"{name} passes on {share:.0%} of validation samples, not {wanted[name]:.0%}: too many "
            "have the same confidence, or too few are left"
            for name, share in shares.items()
            if abs(share - wanted[name]) > NEAR
        ]

    def split(
        self,
        topology: Topology,
        thresholds: Mapping[str, float],
        output: Path,
        limits: bool = False,
    ) -> dict[str, SplitNode]:
        """Write each node's folder below `output`, which appears when all folders are complete.

        With `limits` a node's `max_transfer` also limits the samples that it forwards when it
        serves.
        """
        self._check(topology)
        check_new(output)
        unfinished = output.with_name(f".{output.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        written = {}
        for node in topology.nodes:
            facts = self._facts(topology, node, thresholds[node.name], limits)
            part = Part(self.net, facts.first, facts.last, facts.ensemble)
            tensors = part.tensors(self._behind(facts.first))
            write_part(unfinished / node.name, facts, tensors)
            forms = self._forms(facts.last) if node.parents else ()
            written[node.name] = SplitNode(
                facts,
                weights=sum(t.numel() * t.element_size() for t in tensors.values()),
                sends=sum(form.bytes(facts.longest) for form in forms),
            )
        os.replace(unfinished, output)
        return written

    def _check(self, topology: Topology) -> None:
        units = self.level.exits
        if topology.exits > len(units):
            raise SplitError(
                f"a node has exit {topology.exits}, but the run's network has {len(units)}, which "
                f"follow units {', '.join(map(str, units))}"
            )

    def _facts(self, topology: Topology, node: Node, threshold: float, limits: bool) -> NodePart:
        level, known = self.level, self.level.dataset.facts
        last = level.exits[node.exit - 1]
        heads = level.exits[: node.exit] if level.ensemble else (last,)
        starts = self._starts(topology, node)
        mean, std = (
            (known.mean, known.std) if isinstance(known, ImageFacts | SeriesFacts) else ((), ())
        )
        return NodePart(
            name=node.name,
            run=self.name,
            task=level.task,
            slice=replace(level.slice, exits=heads),
            first=starts[0],
            last=last,
            exit=node.exit,
            ensemble=level.ensemble,
            classes=known.classes,
            mean=mean,
            std=std,
            takes={start: self._forms(start) for start in starts},
            sends=self._read(last),
            threshold=threshold,
            max_transfer=node.max_transfer if limits and node.parents else None,
            parents=node.divided,
        )

    def _starts(self, topology: Topology, node: Node) -> list[int]:
        """Return the units after which a node continues: its children's, and 0 if inputs arrive."""
        below = {child.exit for child in topology.nodes if node.name in child.parents}
        starts = sorted(self.level.exits[place - 1] for place in below)
        return [0, *starts] if node.arrival or not starts else starts

    def _forms(self, start: int) -> tuple[Form, ...]:
        """Return the forms of the features after a unit, or of inputs."""
        if start == 0:
            return (self._form_of_inputs(),)
        pairs = zip(self._behind(start), self._behind(start, shorter=True), strict=True)
        found = zip(self._read(start), pairs, strict=True)
        return tuple(
            Form.of(*pair) if read else Form.of(*(each[:, :0] for each in pair))
            for read, pair in found
        )

    def _form_of_inputs(self) -> Form:
        task, holds = self.level.task, self.level.dataset.holds
        if holds == "images":
            return Form("uint8", (task.in_channels, task.image_size, task.image_size))
        if holds == "series":
            return Form("float32", (task.in_channels, task.length))
        return Form("int32", (None,), self._vocabulary())

    def _vocabulary(self) -> int | None:
        """Return the network's number of tokens; None if its config does not say."""
        known: int | None = getattr(getattr(self.net, "config", None), "vocab_size", None)
        return known

    def _read(self, unit: int) -> tuple[bool, ...]:
        """Return a flag for each feature after a unit: true if a later part reads it."""
        features = self._behind(unit)
        if unit == self.net.depth:
            return (False,) * len(features)
        rest = Part(self.net, unit, self.net.depth, self.level.ensemble)
        return features_read(rest, features, unit)

    @torch.no_grad()
    def _features_behind(self, unit: int, shorter: bool = False) -> Features:
        """Return an input's features after a unit; with `shorter`, those of a shorter text."""
        x = self.level.task.input(1)
        if shorter and x.ndim == 2:
            x = x[:, :-1]
        if unit == 0:
            return (x,)
        features: Features = Part(self.net, 0, unit, self.level.ensemble)((x,))[1]
        return features
