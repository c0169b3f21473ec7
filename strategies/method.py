"""Defines the seams of a method: its levels, assignments, shared tensors and tests.

Each seam has a plain default. A method overrides the seams that it does differently; the rest of
this file calls them. The loop of the rounds is `strategies/round.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar
from uuid import uuid4

import numpy as np
import torch
from flwr.app import ConfigRecord, Message
from flwr.serverapp import Grid
from torch import Tensor, nn

from models import PREFIX, Slice, State, Window
from models.slicing import is_running_statistic
from protocol.work import Recall, Work
from strategies.aggregation.aggregators import Aggregator
from strategies.assignment import (
    Assignment,
    budget_of,
    drawn_level,
    in_turn,
    level_of,
    levels_near,
    messages,
    sampled,
)
from strategies.coverage import Coverage
from strategies.federation import Federation, FederationError, named
from strategies.levels.cost import cost
from strategies.levels.planning import Level, cluster_budgets
from strategies.levels.submodels import Cut, Submodels, global_slice
from strategies.method_settings import MethodSettings, PlannedSettings
from strategies.nodes.enrolment import Client
from strategies.nodes.roster import Roster
from training.local_training import LocalTraining


class Method:
    """One global state, of which each client holds a slice; the mean of what overlaps."""

    Settings: ClassVar[type[MethodSettings]] = PlannedSettings
    """The method's own settings, which conf/strategy/NAME.yaml sets."""
    Training: ClassVar[type[LocalTraining]] = LocalTraining
    """The method's client half."""
    early_exits: ClassVar[bool] = False
    """True if a level also holds the exits of the levels below it; its loss must train them."""

    settings: MethodSettings

    def __init__(
        self, federation: Federation, settings: MethodSettings, weights: State | None = None
    ) -> None:
        """Prepare a run; `weights` are pre-trained ones of the full network to start from."""
        federation = federation.with_model(settings.complete(federation.model))
        federation = federation.with_data(settings.complete_data(federation.dataset))
        self.federation = federation
        settings.check(federation)
        self.settings, self.weights = settings, weights
        self.run_id = federation.run_id or uuid4().hex
        self.roster = Roster(federation, self.ask)
        self.round = 0
        """The last round that was trained."""
        given = settings.ratios if isinstance(settings, PlannedSettings) else None
        self.ratios: tuple[float, ...] = given or ()
        self.levels: list[Level] = []
        self.state: State = {}
        """The global state: the full network's tensors, and those of the banks."""
        self.untrained: set[int] = set()
        """Levels of which no client has sent a usable reply yet."""
        self.last_replies: dict[int, int] = {}
        """The last round in which each client's reply was taken, where clients remember."""
        self._coverage: Coverage | None = None
        if not settings.need_clients:
            self._prepare()

    # --- seams -----------------------------------------------------------------------------------

    def plan(self) -> list[Level]:
        """Return the levels, the smallest first; the last is the full model."""
        if not isinstance(self.settings, PlannedSettings):
            raise NotImplementedError(f"{self.settings.name} has no settings that make its levels")
        budgets = self.ratios or self.federation.fleet.budgets
        return self.settings.plan(self.federation.task, budgets, self.early_exits)

    def ask(self, grid: Grid, clients: Sequence[Client]) -> Mapping[int, str]:
        """Ask clients that have just come what the method must know of them.

        Return the reasons why some of them, by number, cannot take part.
        """
        return {}

    def level_of(self, client: Client) -> Level:
        """Return the level that a client holds: its tier's, or the largest that it affords."""
        return level_of(client, self.levels, self.federation, self.settings)

    def levels_of(self, client: Client) -> Mapping[Level, float]:
        """Return the levels that a client may train in a round, and how often each is drawn."""
        near = levels_near(client, self.levels, self.level_of(client), self.federation)
        return dict.fromkeys(near, 1.0)

    def trained_with(self, level: Level) -> Collection[Level]:
        """Return the levels that are trained when a client trains this one."""
        return [level]

    def window_of(self, client: int, round: int) -> Window:
        """Return the window of channels that a client's slice keeps in a round."""
        return PREFIX

    def assign(self, round: int, clients: Sequence[Client]) -> Iterable[Assignment]:
        """Return the assignments of this round's sampled clients."""
        return [Assignment(each, self.drawn_cut(each, round)) for each in clients]

    def bank(self, name: str, level: Level) -> str | None:
        """Return the bank that keeps a tensor for some levels; None if all levels share it."""
        return f"level{level.number}" if is_running_statistic(name) else None

    def first_of_banks(self, level: Level, full: State) -> Mapping[str, Tensor]:
        """Return the first values of a level's banks, under their names in the global state."""
        return self.submodels.banks_as_cut(level, full)

    def aggregator(self) -> Aggregator:
        """Return a new aggregator of a round's updates: by default the one of the config."""
        return self.federation.aggregation.make()

    def server_step(self, state: State, previous: State) -> State:
        """Return the next global state, from the aggregated one and the previous one."""
        return state

    def tested(self) -> Mapping[str, Cut]:
        """Return the cuts that the server tests, by the names that reports use."""
        return {str(level.number): self._as_first_held(level) for level in self.levels}

    def tested_by(self, client: Client) -> Mapping[str, Cut]:
        """Return the cuts that a client tests, by name: its own level, and the full model."""
        return {"local": self.cut_of(client, self.round), "global": Cut(self.levels[-1])}

    def gathered_by(self, client: Client) -> Collection[Cut]:
        """Return the cuts whose static norms' statistics a client gathers: its own level's."""
        return [self.cut_of(client, self.round)]

    def whole(self) -> Slice:
        """Return the slice of the global state: the full network, with the levels' exits."""
        return global_slice(self.federation.task, self.levels)

    # --- the clients of a round ------------------------------------------------------------------

    @property
    def clients(self) -> dict[int, Client]:
        """The clients that take part, by number."""
        return self.roster.clients

    @property
    def coverage(self) -> Coverage:
        """The clients of each level; computed again only when clients have come or gone."""
        known = self._coverage
        if known is None or not known.is_of(self.levels, self.clients):
            known = self._coverage = Coverage(self.levels, self.clients)
            known.own = {n: self.level_of(each) for n, each in self.clients.items()}
            with_it = {
                level.number: {each.number for each in self.trained_with(level)}
                for level in self.levels
            }
            for number, client in self.clients.items():
                known.may[number] = frozenset(each.number for each in self.levels_of(client))
                trained = (with_it[level] for level in known.may[number])
                known.trains[number] = frozenset().union(*trained)
        known.untrained = self.untrained
        return known

    def cut_of(self, client: Client, round: int) -> Cut:
        """Return the cut that a client holds in a round: its level, through its window."""
        return Cut(self.level_of(client), self.window_of(client.number, round))

    def drawn_cut(self, client: Client, round: int) -> Cut:
        """Return the cut that a client trains in a round: one of its levels, through its window."""
        level = drawn_level(self.levels_of(client), self.federation.seed, round, client.number)
        return Cut(level, self.window_of(client.number, round))

    def assignments(
        self, round: int, available: Sequence[int], told: ConfigRecord | None
    ) -> list[Assignment]:
        """Sample the clients of a round, and return their assignments with all that they need."""
        federation = self.federation
        self.roster.available = len(available)
        numbers = sampled(available, federation.clients_per_round, federation.seed, round)
        assigned = self.assign(round, [self.clients[number] for number in numbers])
        return [
            replace(
                each,
                train=each.train or federation.local_train,
                macs=each.macs or cost(federation.task, each.cut.level.slice).macs,
                personal=self._tests_personally(each.client, round),
            )
            for each in in_turn(assigned, told or {})
        ]

    def _tests_personally(self, client: Client, round: int) -> bool:
        due = self.federation.tests_personally(client.number, round)
        return due and client.profile.test > 0

    def messages(
        self, kind: str, assigned: Iterable[Assignment], round: int
    ) -> Iterator[tuple[Assignment, Message]]:
        """Yield assignments with their messages: the slice's tensors, and the work to do."""
        return messages(
            kind, assigned, self.state, self.submodels, lambda each: self.work(each, round).record()
        )

    def work(self, assigned: Assignment, round: int) -> Work:
        """Return the work for a client, which is sent beside its slice's tensors."""
        federation, turn, client = self.federation, assigned.turn, assigned.client.number
        chance = (federation.seed, round, client, *([turn] if turn else []))
        seed = int(np.random.default_rng(chance).integers(2**31))
        return Work(
            task=federation.task,
            slice=assigned.cut.level.slice,
            dataset=federation.dataset,
            train=assigned.train or federation.local_train,
            method=self.settings.name,
            settings=self.settings.for_clients(),
            told=assigned.told,
            recall=self._recall(assigned) if self.settings.remembers else None,
            round=round,
            seed=seed,
            statistics=federation.evaluate.statistics,
            part=assigned.part,
            personal=assigned.personal,
            sabotage=federation.sabotage_of(client),
        )

    def network(self, level: int) -> nn.Module:
        """Return a level's network with its part of the global state."""
        submodel = self.submodels.of(self._as_first_held(self.levels[level - 1]))
        return self.submodels.network(submodel, self.state)

    def _as_first_held(self, level: Level) -> Cut:
        """Return a level through the window of the first client that may be assigned it."""
        first = self.coverage.first.get(level.number, 0)
        return Cut(level, self.window_of(first, self.round))

    def _recall(self, assigned: Assignment) -> Recall:
        checkpoint, last = self.federation.checkpoint, self.last_replies
        return Recall(
            self.run_id,
            last.get(assigned.client.number, 0),
            turn=assigned.turn,
            keep=checkpoint.every * checkpoint.keep + 1,
        )

    # --- levels and the first state --------------------------------------------------------------

    def prepare(self) -> None:
        """Make the levels of what the clients afford, where the settings do not say them."""
        if not self.levels and isinstance(self.settings, PlannedSettings):
            fleet = self.federation.fleet
            budgets = [min(1.0, budget_of(each, fleet)) for each in self.clients.values()]
            # The full model is a level in any case: whether one may lack is judged elsewhere.
            self.ratios = cluster_budgets([*budgets, 1.0], 1.0, self.settings.levels).ratios
            self._prepare()

    def _prepare(self) -> None:
        """Make the levels and the first global state."""
        self.levels = self.plan()
        with named("aggregation"):
            self.federation.aggregation.check_levels(len(self.levels))
        self.untrained = {level.number for level in self.levels}
        task = self.federation.task
        self.submodels = Submodels(task, self.levels, self.bank, self.whole())
        full = self.submodels.first_weights(self.federation.seed, self.weights)
        banks = [self.first_of_banks(level, full) for level in self.levels]
        self.state = {**full, **{name: t for bank in banks for name, t in bank.items()}}

    # --- state -----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        """Return all that a round depends on besides the configuration."""
        optional = {
            "untrained": sorted(self.untrained),
            "last_replies": sorted(self.last_replies.items()),
        }
        return {
            "round": torch.tensor(self.round),
            **self.plan_dict(),
            "held": torch.tensor(sorted(self.roster.held)),
            **{name: torch.tensor(value) for name, value in optional.items() if value},
            **{f"state.{k}": v for k, v in self.state.items()},
        }

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from what `state_dict` returned."""
        if not self.levels:
            self.load_plan_dict(tensors)
            self._prepare()
        state = {k.removeprefix("state."): v for k, v in tensors.items() if k.startswith("state.")}
        self.adopt(state, "the checkpoint")
        lists = {name: tensor.tolist() for name, tensor in tensors.items() if "." not in name}
        self.round = int(tensors["round"])
        self.roster.held = set(lists.get("held", []))
        self.untrained = set(lists.get("untrained", []))
        self.last_replies = dict(lists.get("last_replies", []))

    def plan_dict(self) -> dict[str, Tensor]:
        """Return the facts that determine the levels, besides the configuration."""
        return {"ratios": torch.tensor(self.ratios, dtype=torch.float64)}

    def load_plan_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Take what `plan_dict` returned, before the levels are made."""
        self.ratios = tuple(tensors["ratios"].tolist())

    def adopt(self, state: State, what: str = "the state") -> None:
        """Take another global state in place of this one, of the same model and plan."""
        self.require_form(state, what)
        self.state = dict(state)

    def require_form(self, state: State, what: str) -> None:
        """Raise `FederationError` unless a state is of this model and plan."""
        given, own = (
            {k: (v.shape, v.dtype) for k, v in each.items()} for each in (state, self.state)
        )
        different = {name for name in given.keys() | own.keys() if given.get(name) != own.get(name)}
        if different:
            raise FederationError(
                f"{what} is of another model or plan: {sorted(different)[:3]} and "
                f"{max(0, len(different) - 3)} more differ"
            )
