"""FL for collaborative inference (Kaplan et al., AAAI 2025): train exits for what they will serve.

Nodes answer requests at their exit and pass the hard ones on (`inference/topology.py`), so some
exits will answer many requests and others few. Algorithm 1:

- In a round each node trains one exit: its own, or with probability p an earlier one, by that
  exit's loss alone. It gets and sends the network up to that exit, and nothing else.
- The server adds up w_node - w, weighted by Lambda_e |S_i| / (|S_e| p_ie): the exit's weight, times
  the node's share of the data that the exit is trained on, over the probability of the draw. The
  expectation over all draws is the step of all nodes and exits together.
- Lambda is the serving rate of the exits, or another choice: `weights`.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from flwr.app import RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from models import State
from models.families import SlicedNetwork
from models.slicing import is_running_statistic
from protocol.records import METRICS
from protocol.train_settings import TrainSettings
from strategies.aggregation.aggregators import Aggregator
from strategies.assignment import Assignment
from strategies.federation import Federation, check_least
from strategies.levels.cost import cost
from strategies.levels.planning import Level
from strategies.method_settings import DepthSettings
from strategies.methods.serving_rate.gradient_variances import (
    WHAT,
    Variances,
    gradient_variances,
    measured_variances,
)
from strategies.methods.serving_rate.pseudo_gradients import PseudoGradients
from strategies.nodes.enrolment import Client
from strategies.replies import AskTally
from strategies.round import NestedStrategy
from training.fitting import steps_of
from training.local_training import LocalTraining

log = logging.getLogger("flwr")  # the logger that `flwr log` shows

UNWEIGHTED = ("trimmed-mean", "median")
"""Aggregators that ignore the weights of updates."""


@dataclass(frozen=True, kw_only=True)
class ServingRateSettings(DepthSettings):
    """The settings of Algorithm 1."""

    name: str = "serving_rate"
    norm: str | None = "bn-running"
    head: str | None = "pool"
    weights: Literal["serving", "equal", "flops", "balanced", "given"] = "serving"
    """Weight of each exit (Lambda): its serving rate | equal | its MACs | balanced, the mean of its
    serving rate and of its gradients' inverse variance, which clients measure | `given`."""
    given: tuple[float, ...] | None = None
    """Weight of each exit, relative to the others."""
    p: float = 0.0
    """Probability with which a node trains each of the exits before its own, below 1."""
    probabilities: tuple[tuple[float, ...], ...] | None = None
    """Probabilities with which a node of each exit trains each exit up to it, in place of p:
    [[1],[0.2,0.8]]."""
    correction: Literal["inverse", "normalised"] = "inverse"
    """Correction for the draws: by 1/p, so that the step is unbiased (Algorithm 1), or by dividing
    Lambda among the clients that train an exit in a round, so that no step is longer than
    theirs."""
    server_lr: float = 1.0
    radius: float | None = None
    """Largest norm of all weights together, onto which the server projects; default (None): no
    limit."""
    variance_batches: int = 16
    """Most batches over which a client measures its gradients' variances, at least 2."""
    equal_steps: bool = True
    """Let nodes with few examples make as many steps in a round as those with most."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("server_lr", "radius"):
            number = getattr(self, name)
            if number is not None and not 0 < number < math.inf:
                raise ValueError(f"{name} is {number}: expected a finite number above 0")
        if (self.weights == "given") != (self.given is not None):
            raise ValueError(
                f"weights is {self.weights} and given is {self.given and list(self.given)}: "
                "expected weights given with a number for each exit, or neither"
            )
        if self.given is not None and not all(0 < each < math.inf for each in self.given):
            raise ValueError(f"given is {list(self.given)}: expected numbers above 0")
        check_least(self, 2, "variance_batches")
        if not 0 <= self.p < 1:
            raise ValueError(f"p is {self.p}: expected 0 or more, and less than 1")
        if self.p and self.probabilities is not None:
            raise ValueError(f"p is {self.p} beside probabilities: expected one of them")
        for exits, row in enumerate(self.probabilities or (), 1):
            if len(row) != exits or min(row) < 0 or not abs(sum(row) - 1) <= 1e-9:
                raise ValueError(
                    f"probabilities: {list(row)} is row {exits}: expected {exits} numbers, 0 or "
                    "more, that add up to 1"
                )

    def check(self, federation: Federation) -> None:
        """Raise where rates are missing, or an exit of the nodes has no level."""
        super().check(federation)
        fleet = federation.fleet
        if self.weights in ("serving", "balanced") and not fleet.nodes:
            raise ValueError(
                f"weights is {self.weights}, but the fleet has no nodes that serve: choose one "
                "that has, such as fleet=cis_7, or weights equal, flops or given"
            )
        for name in ("ratios", "splits"):
            given = getattr(self, name)
            if fleet.nodes and given and len(given) != fleet.exits:
                raise ValueError(f"{len(given)} {name}, but the nodes have {fleet.exits} exits")
        if federation.aggregation.innermost.name in UNWEIGHTED:
            raise ValueError(
                f"aggregation is {federation.aggregation.innermost.name}, which counts all updates "
                "alike, but exits count differently: choose nested_mean, norm_bound or clipped"
            )
        if self.weights == "serving" and fleet.topology and 0 in fleet.topology.exit_rates:
            idle = fleet.topology.exit_rates.index(0) + 1
            raise ValueError(
                f"weights is serving, but exit {idle} serves no requests and would not be trained: "
                "let nodes serve some there, or choose other weights"
            )

    def drawn_exits(self, own: int) -> tuple[float, ...]:
        """Return the probabilities with which a node trains each exit, up to its own."""
        if self.probabilities is not None:
            return self.probabilities[own - 1]
        return (*[self.p] * (own - 1), 1 - (own - 1) * self.p)

    def check_levels(self, levels: int, exits: int) -> None:
        """Raise `ValueError` for settings, or nodes, with another number of exits."""
        if exits not in (0, levels):
            raise ValueError(f"{levels} levels, but the nodes have {exits} exits")
        for name in ("given", "probabilities"):
            found = getattr(self, name)
            if found is not None and len(found) != levels:
                raise ValueError(f"{name} has {len(found)} rows: expected {levels}, one an exit")
        if (levels - 1) * self.p >= 1:
            raise ValueError(
                f"p is {self.p}: expected less than {1 / (levels - 1):.3g}, since the last of "
                f"{levels} exits has {levels - 1} before it"
            )
        for number in range(1, levels + 1):
            if not any(self.drawn_exits(own)[number - 1] for own in range(number, levels + 1)):
                raise ValueError(f"probabilities: no node would train exit {number}")


class ServingRateTraining(LocalTraining):
    """The client half: cross-entropy of the exit it is sent; also measures gradient variances."""

    def answer(self, network: SlicedNetwork | None) -> RecordDict:
        """Return the variance of each exit's gradients over this client's training data."""
        assert network is not None  # `measured_variances` sends it
        exits, work = len(self.work.slice.exits or (1,)), self.work
        found = gradient_variances(
            network, self.data, work.train, exits, work.seed, self.told["batches"]
        )
        return RecordDict({METRICS: Variances(len(self.data), tuple(found)).record()})


class ServingRate(NestedStrategy):
    """The server half: one exit for each node, and the weighted pseudo-gradients of all nodes."""

    Settings = ServingRateSettings
    Training = ServingRateTraining
    settings: ServingRateSettings

    exit_weights: tuple[float, ...] = ()
    """Weight of each exit (Lambda), adding up to 1; empty until clients have measured."""
    steps: int | None = None
    """Steps of every node in a round; None: by the run's epochs."""
    _variances_asked: AskTally | None = None
    """Result of the question about variances, until the first round's line reports it."""

    @cached_property
    def members(self) -> dict[int, tuple[int, int]]:
        """Examples and exit of every client that has enrolled, by number: it may be offline now."""
        return {}

    def plan(self) -> list[Level]:
        """Return the levels: the network up to each exit, with that exit alone."""
        levels = super().plan()
        self.settings.check_levels(len(levels), self.federation.fleet.exits)
        return levels

    def bank(self, name: str, level: Level) -> str | None:
        """Return no bank: with one width, running statistics are averaged."""
        return None

    # --- assignment ------------------------------------------------------------------------------

    def levels_of(self, client: Client) -> Mapping[Level, float]:
        """Return the levels that a node may draw, with their probabilities."""
        own = self.level_of(client).number
        chances = zip(self.levels, self.settings.drawn_exits(own), strict=False)
        return {level: p for level, p in chances if p > 0}

    def assign(self, round: int, clients: Sequence[Client]) -> Iterable[Assignment]:
        """Return one exit for each node, with the weight of its pseudo-gradient."""
        assigned = list(super().assign(round, clients))
        unbiased = self.settings.correction == "inverse"
        examples = self._trained_on() if unbiased else drawn_for(assigned)
        # Sampling clients is part of the draw: the inverse corrects for it, too.
        participation = len(clients) / max(self.roster.available, len(clients))
        return [
            replace(
                each, weight=self._importance(each, examples, participation), train=self.local_train
            )
            for each in assigned
        ]

    def _importance(
        self, assigned: Assignment, examples: Mapping[int, int], participation: float
    ) -> float:
        """Return Lambda_e |S_i| / (|S_e| p_ie); with correction=normalised without p."""
        client, level = assigned.client, assigned.cut.level
        probability = participation * self.levels_of(client)[level]
        share = client.profile.examples / examples[level.number]
        by = probability if self.settings.correction == "inverse" else 1.0
        return self.exit_weights[level.number - 1] * share / by

    def _trained_on(self) -> Counter[int]:
        """Return |S_e| of each exit: the examples of all nodes that may train it, drawn or not."""
        for number, client in self.clients.items():
            self.members[number] = client.profile.examples, self.level_of(client).number
        found: Counter[int] = Counter()
        for examples, own in self.members.values():
            for number, p in enumerate(self.settings.drawn_exits(own), 1):
                found[number] += examples if p > 0 else 0
        return found

    @property
    def local_train(self) -> TrainSettings:
        """Nodes' training settings; with `equal_steps` the steps of the node with most examples."""
        train = self.federation.local_train
        return train if self.steps is None else replace(train, steps=self.steps)

    # --- the step --------------------------------------------------------------------------------

    def aggregator(self) -> Aggregator:
        """Return an aggregator that adds up the weighted pseudo-gradients."""
        rate = self.settings.server_lr
        return self.federation.aggregation.make(lambda inner: PseudoGradients(inner, rate))

    def server_step(self, state: State, previous: State) -> State:
        """Return the state, projected onto the ball of the radius, if there is one."""
        if self._variances_asked is not None:
            self.tally.asked[WHAT], self._variances_asked = self._variances_asked, None
        return state if self.settings.radius is None else projected(state, self.settings.radius)

    # --- weights of the exits --------------------------------------------------------------------

    def ask(self, grid: Grid, clients: Sequence[Client]) -> Mapping[int, str]:
        """Set the weights of the exits, and the steps, when the first clients have enrolled."""
        if not self.exit_weights:
            self.prepare()
            self.exit_weights = normalised(self._raw_weights(grid))
            if self.settings.equal_steps:
                train = self.federation.local_train
                found = [steps_of(c.profile.examples, train) for c in self.clients.values()]
                self.steps = max(found, default=None)
            told = ", ".join(f"{weight:.3g}" for weight in self.exit_weights)
            log.info("weights of the exits (%s): %s", self.settings.weights, told)
        return {}

    def _raw_weights(self, grid: Grid) -> Sequence[float]:
        settings, task = self.settings, self.federation.task
        if settings.weights == "given":
            return settings.given or ()
        if settings.weights == "equal":
            return [1.0] * len(self.levels)
        if settings.weights == "flops":
            return [float(cost(task, level.slice).macs) for level in self.levels]
        topology = self.federation.fleet.topology
        assert topology is not None  # the settings were checked
        if settings.weights == "serving":
            return topology.exit_rates
        variances, self._variances_asked = measured_variances(self, grid, settings.variance_batches)
        log.info("gradient variances: %s", ", ".join(f"{each:.3g}" for each in variances))
        return balanced(topology.exit_rates, variances)

    # --- state -----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state that rounds depend on, with the weights of the exits."""
        members = [(number, *facts) for number, facts in sorted(self.members.items())]
        own = {
            "exit_weights": torch.tensor(self.exit_weights, dtype=torch.float64),
            "members": torch.tensor(members, dtype=torch.int64).view(-1, 3),
            "steps": torch.tensor([] if self.steps is None else [self.steps], dtype=torch.int64),
        }
        return super().state_dict() | own

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state that `state_dict` returned."""
        super().load_state_dict(tensors)
        self.exit_weights = tuple(tensors["exit_weights"].tolist())
        self.steps = next(iter(tensors["steps"].tolist()), None)
        for number, examples, own in tensors["members"].tolist():
            self.members[number] = examples, own


def drawn_for(assigned: Iterable[Assignment]) -> Counter[int]:
    """Return the examples of the clients that train each exit in a round."""
    found: Counter[int] = Counter()
    for each in assigned:
        found[each.level] += each.client.profile.examples
    return found


def normalised(weights: Sequence[float]) -> tuple[float, ...]:
    """Return the weights as shares of 1."""
    total = math.fsum(weights)
    return tuple(weight / total for weight in weights)


def balanced(serving: Sequence[float], variances: Sequence[float]) -> tuple[float, ...]:
    """Return the mean of the serving rates and the inverse variances, both normalised to 1.

    The serving rates have no bias, the inverse variances the least noise. The paper has no formula.
    """
    steady = normalised([1 / variance for variance in variances])
    return tuple((a + b) / 2 for a, b in zip(normalised(serving), steady, strict=True))


def projected(state: State, radius: float) -> State:
    """Return the nearest state whose weights have a norm of at most the radius."""
    weights = {name: t for name, t in state.items() if not is_running_statistic(name)}
    norm = math.sqrt(math.fsum(float(t.double().square().sum()) for t in weights.values()))
    if norm <= radius:
        return state
    return {**state, **{name: t * (radius / norm) for name, t in weights.items()}}
