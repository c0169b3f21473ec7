"""Settings of a run that hold for every method: task, data, fleet, rounds, evaluation."""

from __future__ import annotations

import math
from bisect import bisect_right
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
from strategies.aggregation.update import UpdateBounds

Weighting = Literal["uniform", "examples"]
MissingLevels = Literal["stop", "warn"]
Test = Literal["server", "clients", "validation"]
"""Places of a test: the levels on the server's test set, or clients' models on their test or
validation parts."""

EVERY = Range(0, 999_999)
"""Rounds between two events; 0 stands for the last round alone."""
DEFAULT_SHARE = 0.5
"""Minimum share of the clients that must reply, where `min_replies` is null."""


class FederationError(RuntimeError):
    """A run that cannot continue."""


@dataclass(frozen=True)
class ModelConfig:
    """A registered network, and the options of its family."""

    name: str = "resnet20"
    weights: str | None = None
    """Pre-trained weights to start from: a file, a folder, `hub:NAME`, `package:NAME` or
    `torchvision:NAME`. Default (None): random weights."""
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        chosen = {key: value for key, value in self.options.items() if value is not None}
        object.__setattr__(self, "options", chosen)

    def task(self, data: DatasetSpec) -> Task:
        """Return the network for a data set."""
        options = tuple(sorted(self.options.items()))
        return Task(self.name, data.num_classes, options=options, **data.input_shape)

    def check(self, data: DatasetSpec) -> None:
        """Raise `ValueError` if the network cannot be built, by building it without memory."""
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
    """Clients with the same budget."""

    budget: float
    """Share of the full model's cost that each of them affords."""
    clients: int


@dataclass(frozen=True)
class FleetConfig:
    """The clients, and their budgets where devices do not state their own."""

    clients: Annotated[int, CLIENTS] = 20
    budgets: tuple[float, ...] = (0.125, 0.25, 0.5, 1.0)
    """Budget of each tier, as a share of the full model's cost, in rising order."""
    shares: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0)
    """Relative number of clients in each tier."""
    spread: Annotated[int, Range(0, 100)] = 0
    """Most tiers between a client's own level and the one it trains. Default (0): its own level;
    above 0 every round draws the level anew (NeFL, B.5)."""
    attack: Attack = field(default_factory=Attack)
    """The attackers among the clients, and their attack."""
    nodes: tuple[Node, ...] = ()
    """The clients as nodes that answer requests together, in order of client number; empty for a
    fleet that does not serve."""
    serving: str | None = None
    """Share of the requests that each exit answers, such as 80-15-5; default (None): from the
    nodes' own transfer rates."""

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
        """Return a client's node, or None if it has none."""
        return self.nodes[client] if client < len(self.nodes) else None

    @property
    def exits(self) -> int:
        """Number of the nodes' exits; 0 where there are no nodes."""
        return max((node.exit for node in self.nodes), default=0)

    @cached_property
    def topology(self) -> Topology | None:
        """The nodes, with transfer rates from `serving`; None where there are no nodes."""
        if not self.nodes:
            return None
        made = Topology(self.nodes)
        return made if self.serving is None else made.serving(Serving.read(self.serving))

    @cached_property
    def settings(self) -> dict[Serving, Topology]:
        """The nodes under each of the paper's serving settings that fits them."""
        return Topology(self.nodes).papers_settings() if self.nodes else {}

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """The tiers, with the number of clients in each."""
        counts = self._clients_of_tiers(self.clients)
        return tuple(Tier(b, n) for b, n in zip(self.budgets, counts, strict=True))

    def tier_of(self, client: int, clients: int | None = None) -> int:
        """Return a client's tier, counted from 0: the first clients are in the smallest tier.

        `clients` is the number of clients that are divided into tiers; by default the fleet's.
        """
        clients = self.clients if clients is None else clients
        if clients not in self._ends_of_tiers:
            self._ends_of_tiers[clients] = list(accumulate(self._clients_of_tiers(clients)))
        return bisect_right(self._ends_of_tiers[clients], client)

    @cached_property
    def _ends_of_tiers(self) -> dict[int, list[int]]:
        """First client number after each tier, by the number of clients that are divided."""
        return {}

    def _clients_of_tiers(self, clients: int) -> list[int]:
        """Divide clients by the shares, to within one client per tier.

        Fewer clients than tiers are placed in this order: the largest tier, the smallest, then
        those between, the smaller first.
        """
        total = sum(self.shares)
        ends = [round(clients * end / total) for end in accumulate(self.shares)]
        counts = [end - start for start, end in zip([0, *ends], ends, strict=False)]
        wanted = [tier for tier, share in enumerate(self.shares) if share > 0]
        if clients < len(wanted):
            served = [wanted[-1], *wanted[:-1]][:clients]
            counts = [int(tier in served) for tier in range(len(self.shares))]
        return counts


@dataclass(frozen=True)
class EvaluateConfig:
    """Rounds between evaluations on the server and on the clients; 0: after the last round only."""

    every: Annotated[int, EVERY] = 5
    clients_every: Annotated[int, EVERY] = 0
    personal_every: Annotated[int | None, EVERY] = None
    """Rounds between clients' tests of their own trained slices, before averaging; 0: in the last
    round only; default (None): never."""
    statistics: StatisticsKind = "own"
    """Source of normalisation statistics in clients' tests, for networks that keep none."""

    def __post_init__(self) -> None:
        check_least(self, 0, "every", "clients_every")
        if self.personal_every is not None:
            check_least(self, 0, "personal_every")


@dataclass(frozen=True)
class CheckpointConfig:
    """Rounds between checkpoints, and the number of checkpoints that are kept."""

    every: Annotated[int, ROUNDS] = 1
    keep: Annotated[int, ROUNDS] = 2
    best: bool = True
    """Also keep the checkpoint with the best score on the clients' validation parts."""

    def __post_init__(self) -> None:
        check_least(self, 1, "every", "keep")


@dataclass(frozen=True, kw_only=True)
class Federation:
    """All settings of a run except the method's own."""

    model: ModelConfig = field(default_factory=ModelConfig)
    dataset: DatasetSpec = field(default_factory=DatasetSpec)
    fleet: FleetConfig = field(default_factory=FleetConfig)
    train: TrainSettings = field(default_factory=TrainSettings)
    aggregation: AggregationConfig = field(default_factory=AggregationConfig)
    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    seed: Annotated[int, SEED] = 0
    rounds: Annotated[int, ROUNDS] = 20
    clients_per_round: Annotated[int, CLIENTS] = 20
    in_flight: Annotated[int, CLIENTS] = 16
    """Messages under way at a time."""
    deadline: Annotated[float, Range(0, 10**9)] = 0.0
    """Seconds per round; default (0): wait for all replies."""
    min_replies: float | None = None
    """Minimum share of the sampled clients that must be online and reply, above 0 to 1. Default
    (None): half of the clients that are online."""
    missing_levels: MissingLevels = "stop"
    """Reaction to a full model that no device affords by its own budget, or to a level that has
    lost all its clients after a resume: stop the run, or warn."""
    weighting: Weighting = "uniform"
    max_examples: int = 10**8
    """Upper limit on the number of examples a client may report, 1 to 2^30."""
    max_update: UpdateBounds = field(default_factory=UpdateBounds)
    run_id: str | None = None
    """Identifies the run, also after a resume; default (None): drawn when the run starts."""

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
        """Numbers of the attacking clients."""
        return self.fleet.attack.attackers(self.fleet.clients, self.seed)

    def sabotage_of(self, client: int) -> Sabotage | None:
        """Return an attacker's instructions, or None for an honest client."""
        attacks = client in self.attackers
        return self.fleet.attack.sabotage(client, self.seed) if attacks else None

    def query(self) -> Work:
        """Return the enrolment question: the client inspects its data and its device."""
        return Work(self.task, Slice(), self.dataset, self.local_train, vocabulary=self.vocabulary)

    @cached_property
    def vocabulary(self) -> str | None:
        """Identifies the tokenizer of the run; None where texts are not tokenized by one."""
        return identity(self.dataset.tokenizer) if self.dataset.holds == "tokens" else None

    @cached_property
    def local_train(self) -> TrainSettings:
        """Clients' training settings: learning rate schedules end with the run."""
        return replace(self.train, rounds=self.rounds)

    def with_model(self, model: ModelConfig) -> Self:
        """Return the same federation with another model."""
        return self if model == self.model else replace(self, model=model)

    def with_data(self, dataset: DatasetSpec) -> Self:
        """Return the same federation with another data set."""
        return self if dataset == self.dataset else replace(self, dataset=dataset)

    def needed(self, asked: int) -> int:
        """Return the number of usable replies needed from `asked` clients."""
        share = DEFAULT_SHARE if self.min_replies is None else self.min_replies
        return max(1, math.ceil(share * asked))

    def required(self, clients: int) -> int:
        """Return the number of clients that must be online for a round, of `clients` enrolled.

        A `min_replies` that is set counts from `clients_per_round`, also if fewer clients have
        enrolled.
        """
        if self.min_replies is None:
            return self.needed(min(self.clients_per_round, clients))
        return self.needed(self.clients_per_round)

    @property
    def validates(self) -> bool:
        """True if clients test on their validation parts, to find the best round."""
        return self.checkpoint.best and self.dataset.validation > 0

    def evaluations_due(self, round: int) -> set[Test]:
        """Return the tests that follow a round; after the last round, all possible ones."""
        every: dict[Test, int] = {"server": self.evaluate.every}
        if self.validates:
            every["validation"] = self.evaluate.every
        if self.dataset.tests_locally:
            every["clients"] = self.evaluate.clients_every
        return {who for who, rounds in every.items() if self._is_due(rounds, round)}

    def tests_personally(self, client: int, round: int) -> bool:
        """Return whether a client tests its own slice in a round; an attacker never does."""
        every = self.evaluate.personal_every
        return every is not None and self._is_due(every, round) and client not in self.attackers

    def _is_due(self, every: int, round: int) -> bool:
        return round == self.rounds or (every > 0 and round % every == 0)


@contextmanager
def named(part: str) -> Iterator[None]:
    """Prefix a `ValueError` with the part of the settings that it is about."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{part}: {error}") from error


def rises_to_one(shares: tuple[float, ...]) -> bool:
    """Return whether shares rise from above 0 to 1."""
    return bool(shares) and list(shares) == sorted(shares) and shares[0] > 0 and shares[-1] == 1


def check_least(settings: object, least: int, *names: str) -> None:
    """Raise `ValueError` for the first of these settings that is below `least`."""
    for name in names:
        if getattr(settings, name) < least:
            expected = f"at least {least}" if least else "0 or more"
            raise ValueError(f"{name} is {getattr(settings, name)}: expected {expected}")
