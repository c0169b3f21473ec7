"""FL for collaborative inference (Kaplan et al., AAAI 2025): train exits for what they will serve.

Nodes answer requests at their exit and pass the hard ones on (`inference/topology.py`), so some
exits will answer many requests and others few. Algorithm 1:

- In a round each node trains one exit: its own, or with probability p an earlier one, by that
  exit's loss alone. It gets and sends the network up to there, and nothing else.
- The server adds up w_node - w, weighted by Lambda_e |S_i| / (|S_e| p_ie): what an exit counts, the
  node's share of the data that the exit is trained on, and how rarely it is drawn for it. The
  expectation over all draws is the step of all nodes and exits together.
- Lambda is what the exits will serve, or another choice: `weights`.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from flwr.serverapp import Grid
from torch import Tensor

from models import State
from models.slicing import is_running_statistic
from protocol.reading import ProtocolError
from protocol.train_settings import TrainSettings
from protocol.variances import Variances
from strategies.aggregation.aggregators import Aggregator
from strategies.aggregation.pseudo_gradients import PseudoGradients
from strategies.assignment import Assignment
from strategies.base import NestedStrategy
from strategies.federation import Federation, FederationError, check_least
from strategies.fleet.enrolment import Client
from strategies.fleet.sampling import drawn
from strategies.levels.cost import cost
from strategies.levels.planning import Level
from strategies.levels.submodels import Cut
from strategies.method_settings import DepthSettings
from strategies.rounds.questions import Question, ask
from training.fitting import steps_of

log = logging.getLogger("flwr")  # whose lines `flwr log` shows


@dataclass(frozen=True, kw_only=True)
class ServingRateSettings(DepthSettings):
    """The settings of Algorithm 1."""

    name: str = "serving_rate"
    norm: str | None = "bn-running"
    head: str | None = "pool"
    weights: Literal["serving", "equal", "flops", "balanced", "given"] = "serving"
    """What each exit counts (Lambda): as it will serve | all alike | by its MACs | the mean of what
    it will serve and of the inverse of its gradients' variance, which clients measure | `given`."""
    given: tuple[float, ...] | None = None
    """What each exit counts, relative to the others."""
    p: float = 0.0
    """How often a node trains each of the exits before its own."""
    probabilities: tuple[tuple[float, ...], ...] | None = None
    """How often a node of each exit trains each exit up to it, in place of p: [[1],[0.2,0.8]]."""
    correction: Literal["inverse", "normalised"] = "inverse"
    """How draws are made up for: by 1/p, so that the step is unbiased (Algorithm 1), or by sharing
    out Lambda among those who train an exit in a round, so that no step is longer than theirs."""
    server_lr: float = 1.0
    radius: float | None = None
    """The largest norm that all weights together may have: the server projects on that ball."""
    variance_batches: int = 16
    """Batches over which a client measures how much gradients vary, at most."""
    equal_steps: bool = True
    """Whether nodes with few examples make as many steps in a round as those with most."""

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
        for exits, row in enumerate(self.probabilities or (), 1):
            if len(row) != exits or min(row) < 0 or abs(sum(row) - 1) > 1e-9:
                raise ValueError(
                    f"probabilities: {list(row)} is row {exits}: expected {exits} numbers, 0 or "
                    "more, that add up to 1"
                )

    def check(self, federation: Federation) -> None:
        """Raise where there are no rates to go by, or an exit of the nodes has no level."""
        super().check(federation)
        fleet = federation.fleet
        if self.weights in ("serving", "balanced") and not fleet.nodes:
            raise ValueError(
                f"weights is {self.weights}, but the fleet has no nodes that serve: choose one "
                "that has, such as fleet=cis_7, or weights equal, flops or given"
            )
        if fleet.nodes and self.ratios and len(self.ratios) != fleet.exits:
            raise ValueError(f"{len(self.ratios)} ratios, but the nodes have {fleet.exits} exits")
        if fleet.nodes and self.splits and len(self.splits) != fleet.exits:
            raise ValueError(f"{len(self.splits)} splits, but the nodes have {fleet.exits} exits")
        if self.weights == "serving" and fleet.topology and 0 in fleet.topology.exit_rates:
            idle = fleet.topology.exit_rates.index(0) + 1
            raise ValueError(
                f"weights is serving, but exit {idle} serves no requests and would not be trained: "
                "let nodes serve some there, or choose other weights"
            )

    def drawn_exits(self, own: int) -> tuple[float, ...]:
        """Return how often a node trains each exit, up to its own."""
        if self.probabilities is not None:
            return self.probabilities[own - 1]
        return (*[self.p] * (own - 1), 1 - (own - 1) * self.p)

    def check_levels(self, levels: int) -> None:
        """Raise `ValueError` for settings of another number of exits."""
        for name in ("given", "probabilities"):
            found = getattr(self, name)
            if found is not None and len(found) != levels:
                raise ValueError(f"{name} has {len(found)} rows: expected {levels}, one an exit")
        if (levels - 1) * self.p > 1:
            raise ValueError(
                f"p is {self.p}: expected at most {1 / (levels - 1):.3g}, since the last of "
                f"{levels} exits has {levels - 1} before it"
            )


class ServingRate(NestedStrategy):
    """The server half; clients minimise the cross-entropy of the one exit that they are sent."""

    Settings = ServingRateSettings
    settings: ServingRateSettings

    exit_weights: tuple[float, ...] = ()
    """What each exit counts (Lambda): shares of 1; unknown until clients have measured."""
    participation: float = 1.0
    """The share of the clients that this round's sample has."""

    def plan(self) -> list[Level]:
        """Return the levels: the network up to each exit, with that exit alone."""
        levels = super().plan()
        self.settings.check_levels(len(levels))
        return levels

    def bank(self, name: str, level: Level) -> str | None:
        """Return no bank: of one width, running statistics are averaged."""
        return None

    # --- who trains what -------------------------------------------------------------------------

    def levels_of(self, client: Client) -> Sequence[Level]:
        """Return the levels that a node may be drawn for."""
        return [level for level, p in self._draws(client).items() if p > 0]

    def drawn_level(self, client: Client, round: int) -> Level:
        """Return the exit that a node trains in a round, drawn by p."""
        draws = self._draws(client)
        place = drawn(list(draws.values()), self.federation.seed, round, client.number)
        return list(draws)[place]

    def sample(self, round: int, available: Sequence[int]) -> list[int]:
        """Return this round's nodes; which share they are counts in how rarely each is drawn."""
        found = super().sample(round, available)
        self.participation = len(found) / len(available)
        return found

    def assign(self, round: int, clients: Sequence[Client]) -> Iterable[Assignment]:
        """Return one exit for each node, with the weight of its pseudo-gradient."""
        assigned = list(super().assign(round, clients))
        trained_on, drawn_on = self._examples(), Counter[Level]()
        for each in assigned:
            drawn_on[each.cut.level] += each.client.profile.examples
        normalised = self.settings.correction == "normalised"
        return [
            replace(each, weight=self._importance(each, drawn_on if normalised else trained_on))
            for each in assigned
        ]

    def _importance(self, assigned: Assignment, examples: Mapping[Level, int]) -> float:
        """Return Lambda_e |S_i| / (|S_e| p_ie), or of those who were drawn, without p."""
        client, level = assigned.client, assigned.cut.level
        probability = self.participation * self._draws(client)[level]
        share = client.profile.examples / examples[level]
        by = probability if self.settings.correction == "inverse" else 1.0
        return self.exit_weights[level.number - 1] * share / by

    def _examples(self) -> Counter[Level]:
        """Return |S_e| of each exit: the examples of all who may train it, drawn or not."""
        found: Counter[Level] = Counter()
        for client in self.clients.values():
            found.update(dict.fromkeys(self.levels_of(client), client.profile.examples))
        return found

    def _draws(self, client: Client) -> dict[Level, float]:
        """Return how often a node trains each level up to its own."""
        own = self.level_of(client).number
        return dict(zip(self.levels, self.settings.drawn_exits(own), strict=False))

    @property
    def local_train(self) -> TrainSettings:
        """How nodes train: with `equal_steps` as many steps as the one with most examples."""
        train = super().local_train
        if not self.settings.equal_steps or not self.clients:
            return train
        most = max(steps_of(each.profile.examples, train) for each in self.clients.values())
        return replace(train, steps=most)

    # --- the step --------------------------------------------------------------------------------

    def aggregator(self) -> Aggregator:
        """Return what adds up the weighted pseudo-gradients."""
        rate = self.settings.server_lr
        return self.federation.aggregation.make(lambda inner: PseudoGradients(inner, rate))

    def server_step(self, state: State, previous: State) -> State:
        """Return the state, projected on the ball of the radius, if there is one."""
        return state if self.settings.radius is None else projected(state, self.settings.radius)

    # --- what exits count ------------------------------------------------------------------------

    def ask_first(self, grid: Grid) -> None:
        """Find out what each exit counts, if this run has not done so before."""
        if not self.exit_weights:
            self.exit_weights = normalised(self._raw_weights(grid))
        told = ", ".join(f"{weight:.3g}" for weight in self.exit_weights)
        log.info("exits count (%s): %s", self.settings.weights, told)

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
        return balanced(topology.exit_rates, self._measured_variances(grid))

    def _measured_variances(self, grid: Grid) -> list[float]:
        """Return each exit's gradient variance: the mean of the clients', by their examples."""
        told = {"batches": self.settings.variance_batches}
        questions = [
            Question(client, Cut(self._with_exits_below(client)), told=told, what="variances")
            for client in self.clients.values()
        ]
        answers = ask(self, "query.variances", questions, grid, self.tally)
        found: list[list[tuple[int, float]]] = [[] for _ in self.levels]
        for question, content in answers:
            client, exits = question.client, question.cut.level.slice.exits or ()
            try:
                measured = Variances.read(content, len(exits))
            except ProtocolError as error:
                self.tally.asked["variances"].refuse(client.number, error.reason, str(error))
                continue
            for place, variance in enumerate(measured.exits):
                found[place].append((min(measured.examples, client.profile.examples), variance))
        for level, each in zip(self.levels, found, strict=True):
            if not each:
                raise FederationError(
                    f"weights is balanced, but no client has measured how much the gradients of "
                    f"exit {level.number} vary, which takes two batches of examples: lower "
                    "train.batch_size, or choose other weights"
                )
        log.info("gradient variances: %s", [_mean(each) for each in found])
        return [_mean(each) for each in found]

    def _with_exits_below(self, client: Client) -> Level:
        """Return a client's level with all exits on its way."""
        own = self.level_of(client)
        exits = tuple(each.split.depth for each in self.levels[: own.number])
        return replace(own, slice=replace(own.slice, exits=exits))

    # --- state -----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        """Return all that a round depends on, what exits count too."""
        weights = torch.tensor(self.exit_weights, dtype=torch.float64)
        return super().state_dict() | {"exit_weights": weights}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what `state_dict` returned."""
        super().load_state_dict(tensors)
        self.exit_weights = tuple(tensors["exit_weights"].tolist())


def normalised(weights: Sequence[float]) -> tuple[float, ...]:
    """Return the same weights as shares of 1."""
    total = math.fsum(weights)
    return tuple(weight / total for weight in weights)


def balanced(serving: Sequence[float], variances: Sequence[float]) -> tuple[float, ...]:
    """Return the mean of what exits serve and of the inverse of their variances, both of 1.

    The first is without bias, the second has the least noise. The paper has no formula for it.
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


def _mean(found: Sequence[tuple[int, float]]) -> float:
    examples = sum(each for each, _ in found)
    return math.fsum(each * variance for each, variance in found) / examples
