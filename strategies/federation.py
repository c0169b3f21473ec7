"""What a run of any method is given: task, data, fleet, and the rhythm of its rounds."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Annotated, Any, Literal, Self

from data.ranges import CLIENTS, ROUNDS, SEED, Range
from data.spec import DatasetSpec
from data.tokens import identity
from inference.topology import Node, Serving, Topology
from models import Slice, Task, family, names
from protocol.attack import Attack, Sabotage
from protocol.train_settings import StatisticsKind, TrainSettings
from protocol.work import Work
from strategies.aggregation.aggregators import AggregationConfig
from strategies.aggregation.bounds import UpdateBounds

Weighting = Literal["uniform", "examples"]
MissingLevels = Literal["stop", "warn"]
Test = Literal["server", "clients", "validation"]
"""Of the levels on the server's test set, and of clients' models on their test or validation part.
"""

EVERY = Range(0, 999_999)
"""Rounds between two events; 0 stands for the last round alone."""
DEFAULT_SHARE = 0.5
"""Of the clients who have come, where `min_replies` names no other."""


class FederationError(RuntimeError):
    """A run that cannot go on."""


@dataclass(frozen=True)
class ModelConfig:
    """A registered network, and the options that its family takes."""

    name: str = "resnet20"
    weights: str | None = None
    """Pre-trained weights to start from: a file, a folder, `hub:NAME`, `package:NAME` or
    `torchvision:NAME`."""
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        chosen = {key: value for key, value in self.options.items() if value is not None}
        object.__setattr__(self, "options", chosen)

    def task(self, data: DatasetSpec) -> Task:
        """Return the network for a data set."""
        options = tuple(sorted(self.options.items()))
        return Task(self.name, data.num_classes, options=options, **data.input_shape)

    def check(self, data: DatasetSpec) -> None:
        """Raise `ValueError` if there is no such network, by building it without memory."""
        found = family(self.name)
        if found.reads != data.holds:
            able = [name for name in names() if family(name).reads == data.holds]
            hint = f", which these read: {', '.join(able)}" if data.is_own else ""
            raise ValueError(
                f"{self.name} reads {found.reads}, but the data set {data.name} holds {data.holds}"
                f"{hint}"
            )
        everything = Slice(exits=tuple(range(1, found.units + 1)))
        self.task(data).build(everything, device="meta")


@dataclass(frozen=True)
class Tier:
    """Clients of one kind."""

    budget: float
    """What they can hold, as a share of the full model's cost."""
    clients: int


@dataclass(frozen=True)
class FleetConfig:
    """The clients, and what each can hold where its device does not say."""

    clients: Annotated[int, CLIENTS] = 10
    budgets: tuple[float, ...] = (1.0,)
    """Of the tiers, as shares of the full model, the smallest first."""
    shares: tuple[float, ...] = (1.0,)
    """How many of the clients are in each tier, relative to the others."""
    spread: Annotated[int, Range(0, 100)] = 0
    """By how many tiers the level that a client trains may be off its own: where it is more than 0,
    every round draws it anew (NeFL, B.5)."""
    attack: Attack = field(default_factory=Attack)
    """What some of the clients do to the others."""
    nodes: tuple[Node, ...] = ()
    """The clients as nodes that will answer requests together, in the order of their numbers; none
    where that is no matter."""
    serving: str | None = None
    """Which share of the requests each exit answers, such as 80-15-5; None goes by the nodes' own
    transfer rates."""

    def __post_init__(self) -> None:
        check_least(self, 1, "clients")
        check_least(self, 0, "spread")
        if not rises_to_one((*self.budgets, 1.0)):
            raise ValueError(
                f"budgets are {list(self.budgets)}: expected to rise from above 0 to 1"
            )
        if len(self.shares) != len(self.budgets):
            raise ValueError(f"{len(self.shares)} shares, but {len(self.budgets)} budgets")
        if min(self.shares) < 0 or sum(self.shares) == 0:
            raise ValueError(f"shares are {list(self.shares)}: expected 0 or more, not all 0")
        attack = self.attack
        if attack.kind != "none" and attack.share > 0 and not attack.count(self.clients):
            raise ValueError(
                f"attack.share is {attack.share}: of {self.clients} clients that is nobody"
            )
        if self.nodes and len(self.nodes) != self.clients:
            raise ValueError(
                f"{len(self.nodes)} nodes, but {self.clients} clients: expected one each"
            )
        if self.serving is not None and not self.nodes:
            raise ValueError(
                f"serving is {self.serving!r}, but this fleet has no nodes: choose one that has, "
                "such as fleet=cis_7"
            )
        _ = self.topology  # which is checked when it is made

    def node_of(self, client: int) -> Node | None:
        """Return the node that a client is, if it is one."""
        return self.nodes[client] if client < len(self.nodes) else None

    @property
    def exits(self) -> int:
        """How many exits the nodes have; 0 where there are none."""
        return max((node.exit for node in self.nodes), default=0)

    @cached_property
    def topology(self) -> Topology | None:
        """The nodes, with transfer rates as `serving` says; None where there are none."""
        if not self.nodes:
            return None
        made = Topology(self.nodes)
        return made if self.serving is None else made.serving(Serving.read(self.serving))

    @cached_property
    def settings(self) -> dict[Serving, Topology]:
        """The nodes under each of the paper's serving settings that they can have."""
        return Topology(self.nodes).papers_settings() if self.nodes else {}

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """The clients divided by the shares, to within one client; few go where they do most."""
        total = sum(self.shares)
        ends = [round(self.clients * end / total) for end in accumulate(self.shares)]
        counts = [end - start for start, end in zip([0, *ends], ends, strict=False)]
        wanted = [tier for tier, share in enumerate(self.shares) if share > 0]
        if self.clients < len(wanted):
            # One each: the largest tier, the smallest, then those between, the smaller first.
            served = [wanted[-1], *wanted[:-1]][: self.clients]
            counts = [int(tier in served) for tier in range(len(self.shares))]
        return tuple(Tier(b, n) for b, n in zip(self.budgets, counts, strict=True))

    def tier_of(self, client: int, clients: int | None = None) -> int:
        """Return the tier of a client, counted from 0: the first clients are the smallest.

        It is one of `clients`, or of the fleet's own number of them.
        """
        fleet = self if clients is None else replace(self, clients=clients)
        ends = accumulate(tier.clients for tier in fleet.tiers)
        return next(tier for tier, end in enumerate(ends) if client < end)


@dataclass(frozen=True)
class EvaluateConfig:
    """Rounds between evaluations on the server, and on the clients; 0 is after the last alone."""

    every: Annotated[int, EVERY] = 1
    clients_every: Annotated[int, EVERY] = 0
    personal_every: Annotated[int | None, EVERY] = None
    """Rounds between tests of what clients have trained, by themselves and before it is averaged;
    0 is in the last alone, None in none."""
    statistics: StatisticsKind = "own"
    """What clients' tests normalise by, where the network keeps no statistics."""

    def __post_init__(self) -> None:
        check_least(self, 0, "every", "clients_every")
        if self.personal_every is not None:
            check_least(self, 0, "personal_every")


@dataclass(frozen=True)
class CheckpointConfig:
    """Rounds between checkpoints, and how many are kept."""

    every: Annotated[int, ROUNDS] = 1
    keep: Annotated[int, ROUNDS] = 2
    best: bool = True
    """Whether the one with the best score on the clients' validation parts is kept, too."""

    def __post_init__(self) -> None:
        check_least(self, 1, "every", "keep")


@dataclass(frozen=True, kw_only=True)
class Federation:
    """All that the rounds depend on besides the method and its own settings."""

    model: ModelConfig = field(default_factory=ModelConfig)
    dataset: DatasetSpec = field(default_factory=DatasetSpec)
    fleet: FleetConfig = field(default_factory=FleetConfig)
    train: TrainSettings = field(default_factory=TrainSettings)
    aggregation: AggregationConfig = field(default_factory=AggregationConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    seed: Annotated[int, SEED] = 0
    rounds: Annotated[int, ROUNDS] = 10
    clients_per_round: Annotated[int, CLIENTS] = 10
    in_flight: Annotated[int, CLIENTS] = 16
    """Messages that are under way at a time."""
    deadline: Annotated[float, Range(0, 10**9)] = 0.0
    """Seconds that a round may take; 0 waits for all replies."""
    min_replies: float | None = None
    """The share of a round's clients that must be there and answer; None is half of whoever is."""
    missing_levels: MissingLevels = "stop"
    """What a run does where no device affords the full model, by its own word, or where it was
    resumed and a level has lost all its clients."""
    weighting: Weighting = "uniform"
    max_examples: int = 10**8
    """That a client may say it has."""
    max_update: UpdateBounds = field(default_factory=UpdateBounds)
    run_id: str | None = None
    """Tells this run from all others, also after it was resumed; made when it starts."""

    def __post_init__(self) -> None:
        check_least(self, 1, "rounds", "clients_per_round", "in_flight")
        check_least(self, 0, "seed", "deadline")
        if not 1 <= self.max_examples <= 2**30:
            raise ValueError(f"max_examples is {self.max_examples}: expected 1 to 2^30")
        if self.min_replies is not None and not 0 < self.min_replies <= 1:
            raise ValueError(f"min_replies is {self.min_replies}: expected above 0, to 1")
        if self.clients_per_round > self.fleet.clients:
            raise ValueError(
                f"clients_per_round is {self.clients_per_round}, "
                f"but the fleet has {self.fleet.clients} clients"
            )
        if self.dataset.clients != self.fleet.clients:
            raise ValueError(
                f"dataset.clients is {self.dataset.clients}, "
                f"but the fleet has {self.fleet.clients} clients"
            )
        if self.evaluate.personal_every is not None and not self.dataset.tests_locally:
            raise ValueError(
                f"evaluate.personal_every is {self.evaluate.personal_every}, but clients have "
                "nothing to test on: choose dataset.local_test=global, or dataset.test above 0"
            )
        with named("model"):
            self.model.check(self.dataset)
        with named("aggregation"):
            self.aggregation.check()

    @cached_property
    def task(self) -> Task:
        """The full network, and the shape of its data."""
        return self.model.task(self.dataset)

    @cached_property
    def attackers(self) -> frozenset[int]:
        """The numbers of the clients that attack the others."""
        return self.fleet.attack.attackers(self.fleet.clients, self.seed)

    def sabotage_of(self, client: int) -> Sabotage | None:
        """Return what a client is told to do to the others, if it is an attacker."""
        attacks = client in self.attackers
        return self.fleet.attack.sabotage(client, self.seed) if attacks else None

    def query(self) -> Work:
        """Return what a client is asked before the first round: to look at its data and itself."""
        return Work(self.task, Slice(), self.dataset, self.local_train, vocabulary=self.vocabulary)

    @cached_property
    def vocabulary(self) -> str | None:
        """What tells the run's tokenizer from others, where texts go through a pre-trained one."""
        return identity(self.dataset.tokenizer) if self.dataset.holds == "tokens" else None

    @property
    def local_train(self) -> TrainSettings:
        """How clients train: schedules end with the run."""
        return replace(self.train, rounds=self.rounds)

    def with_model(self, model: ModelConfig) -> Self:
        """Return the same federation with another model."""
        return self if model == self.model else replace(self, model=model)

    def with_data(self, dataset: DatasetSpec) -> Self:
        """Return the same federation with another data set."""
        return self if dataset == self.dataset else replace(self, dataset=dataset)

    def needed(self, asked: int) -> int:
        """Return how many of those asked must give a usable reply."""
        share = DEFAULT_SHARE if self.min_replies is None else self.min_replies
        return max(1, math.ceil(share * asked))

    def required(self, clients: int) -> int:
        """Return how many clients must be there for a round, of a run that has so many.

        A share that was named is of the clients that were asked for, whether they came or not.
        """
        if self.min_replies is None:
            return self.needed(min(self.clients_per_round, clients))
        return self.needed(self.clients_per_round)

    @property
    def validates(self) -> bool:
        """Whether clients test on their validation parts, so that the best round is known."""
        return self.checkpoint.best and self.dataset.validation > 0

    def evaluations_due(self, round: int) -> set[Test]:
        """Return what is tested after a round; after the last one all that can be is."""
        every: dict[Test, int] = {"server": self.evaluate.every}
        if self.validates:
            every["validation"] = self.evaluate.every
        if self.dataset.tests_locally:
            every["clients"] = self.evaluate.clients_every
        return {who for who, rounds in every.items() if self._is_due(rounds, round)}

    def tests_personally(self, client: int, round: int) -> bool:
        """Return whether a client tests what it trains in a round: an attacker's means nothing."""
        every = self.evaluate.personal_every
        return every is not None and self._is_due(every, round) and client not in self.attackers

    def _is_due(self, every: int, round: int) -> bool:
        return round == self.rounds or (every > 0 and round % every == 0)


@contextmanager
def named(part: str) -> Iterator[None]:
    """Say which part of the settings a `ValueError` is about."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{part}: {error}") from error


def rises_to_one(shares: tuple[float, ...]) -> bool:
    """Return whether shares rise from above 0 to 1."""
    return bool(shares) and list(shares) == sorted(shares) and shares[0] > 0 and shares[-1] == 1


def check_least(settings: object, least: int, *names: str) -> None:
    """Raise `ValueError` for the first of these settings that is less."""
    for name in names:
        if getattr(settings, name) < least:
            expected = f"at least {least}" if least else "0 or more"
            raise ValueError(f"{name} is {getattr(settings, name)}: expected {expected}")
