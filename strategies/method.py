"""What a method says: which levels there are, who trains what, what is shared, what is tested.

All of it has a plain default, which the first part below lists: a method overrides what it does
differently. No messages here: how they are sent, and rounds run, is `strategies/base.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import ClassVar
from uuid import uuid4

import numpy as np
import torch
from flwr.serverapp import Grid
from torch import Tensor, nn

from models import PREFIX, Slice, State, Window
from models.slicing import is_running_statistic
from protocol.reports import Trained
from protocol.train_settings import TrainSettings
from protocol.work import Recall, Work
from strategies.aggregation.aggregators import Aggregator
from strategies.aggregation.update import Update
from strategies.assignment import Assignment
from strategies.federation import Federation, FederationError, named
from strategies.fleet.client_levels import budget_of, level_of, levels_near
from strategies.fleet.coverage import Coverage
from strategies.fleet.enrolment import Client
from strategies.fleet.roster import Roster
from strategies.fleet.sampling import drawn, sampled
from strategies.levels.cost import cost
from strategies.levels.planning import Level, cluster_budgets
from strategies.levels.submodels import Cut, Submodels, global_slice
from strategies.method_settings import MethodSettings, PlannedSettings
from training.local_training import LocalTraining


class Method:
    """One global state, of which each client holds a slice; the mean of what overlaps."""

    Settings: ClassVar[type[MethodSettings]] = PlannedSettings
    """The method's own settings, which conf/strategy/NAME.yaml sets."""
    Training: ClassVar[type[LocalTraining]] = LocalTraining
    """The method's client half."""
    early_exits: ClassVar[bool] = False
    """Whether a level also holds the exits of the levels below it, which its loss must train."""

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
        self.roster = Roster(federation, self.admit)
        self.round = 0
        """The last one that was trained."""
        given = settings.ratios if isinstance(settings, PlannedSettings) else None
        self.ratios: tuple[float, ...] = given or ()
        self.levels: list[Level] = []
        self.state: State = {}
        """The global state: the full network's tensors, and those of the banks."""
        self.untrained: set[int] = set()
        """Levels of which no client has sent a usable reply yet."""
        self.last_replies: dict[int, int] = {}
        """The last round of which each client's reply was taken, where clients remember."""
        if not settings.need_clients:
            self._prepare()

    # --- what a method may do differently ------------------------------------------------------

    def plan(self) -> list[Level]:
        """Return the levels, the smallest first; the last is the full model."""
        if not isinstance(self.settings, PlannedSettings):
            raise NotImplementedError(f"{self.settings.name} has no settings that make its levels")
        budgets = self.ratios or self.federation.fleet.budgets
        return self.settings.plan(self.federation.task, budgets, self.early_exits)

    def admit(self, grid: Grid, clients: Sequence[Client]) -> Mapping[int, str]:
        """Ask clients that have come what else must be known, before they are given a level.

        Returned is why some of them, by number, cannot take part: by default nothing is asked.
        """
        return {}

    def level_of(self, client: Client) -> Level:
        """Return the level that a client holds: its tier's, or the largest that it affords."""
        return level_of(client, self.levels, self.federation, self.settings)

    def levels_of(self, client: Client) -> Collection[Level]:
        """Return the levels that a client may be assigned: its own, or those near it."""
        return levels_near(client, self.levels, self.level_of(client), self.federation)

    def trained_with(self, level: Level) -> Collection[Level]:
        """Return the levels that whoever trains a level trains: by default that one alone."""
        return [level]

    def training_macs(self, level: Level) -> int:
        """Return the MACs of a forward pass of one example in a level's training."""
        return cost(self.federation.task, level.slice).macs

    @property
    def local_train(self) -> TrainSettings:
        """How clients train."""
        return self.federation.local_train

    def ask_first(self, grid: Grid) -> None:
        """Ask the clients what must be known before the first round: by default nothing."""

    def whole(self) -> Slice:
        """Return what the global state is of: the full network, with the levels' exits."""
        return global_slice(self.federation.task, self.levels)

    def window_of(self, client: int, round: int) -> Window:
        """Return which channels a client's slice keeps in a round."""
        return PREFIX

    def bank(self, name: str, level: Level) -> str | None:
        """Return the bank that keeps a tensor for some only, or None where all levels share it."""
        return f"level{level.number}" if is_running_statistic(name) else None

    def first_of_banks(self, level: Level, full: State) -> Mapping[str, Tensor]:
        """Return what a level's banks start from, under their names in the global state."""
        return self.submodels.banks_as_cut(level, full)

    def sample(self, round: int, available: Sequence[int]) -> list[int]:
        """Return this round's clients, drawn from (seed, round) over the sorted numbers."""
        federation = self.federation
        return sampled(available, federation.clients_per_round, federation.seed, round)

    def assign(self, round: int, clients: Sequence[Client]) -> Iterable[Assignment]:
        """Return what the sampled clients train in this round."""
        return [
            Assignment(
                client,
                Cut(self.drawn_level(client, round), self.window_of(client.number, round)),
            )
            for client in clients
        ]

    def aggregator(self) -> Aggregator:
        """Return what folds a round's updates: by default what the config chooses."""
        return self.federation.aggregation.make()

    def counted(self, update: Update, trained: Trained) -> Update:
        """Return the part of a client's update that counts, by what it reports: by default all."""
        return update

    def server_step(self, state: State, previous: State) -> State:
        """Return the next global state, of what the updates came to and the one before."""
        return state

    def tested(self) -> Mapping[str, Cut]:
        """Return what the server tests, by the names that reports know it by."""
        return {str(level.number): self._as_first_held(level) for level in self.levels}

    def tested_by(self, client: Client) -> Mapping[str, Cut]:
        """Return what a client tests, by name: its own level, and the full model."""
        return {"local": self.cut_of(client, self.round), "global": Cut(self.levels[-1])}

    def gathered_by(self, client: Client) -> Collection[Cut]:
        """Return the submodels whose static norms' statistics a client gathers: its own level's."""
        return [self.cut_of(client, self.round)]

    # --- submodels and work ----------------------------------------------------------------------

    def cut_of(self, client: Client, round: int) -> Cut:
        """Return what a client holds in a round: its level, through its window."""
        return Cut(self.level_of(client), self.window_of(client.number, round))

    def drawn_level(self, client: Client, round: int) -> Level:
        """Return the level that a client trains in a round: one of those it may be assigned."""
        choices = list(self.levels_of(client))
        weights = [1.0] * len(choices)
        return choices[drawn(weights, self.federation.seed, round, client.number)]

    def network(self, level: int) -> nn.Module:
        """Return a level's network with its part of the global state."""
        submodel = self.submodels.of(self._as_first_held(self.levels[level - 1]))
        return self.submodels.network(submodel, self.state)

    def work(self, assigned: Assignment, round: int) -> Work:
        """Return what goes with an assignment's tensors."""
        federation, turn, client = self.federation, assigned.turn, assigned.client.number
        chance = (federation.seed, round, client, *([turn] if turn else []))
        seed = int(np.random.default_rng(chance).integers(2**31))
        return Work(
            task=federation.task,
            slice=assigned.cut.level.slice,
            dataset=federation.dataset,
            train=self.local_train,
            method=self.settings.name,
            settings=self.settings,
            told=assigned.told,
            recall=self._recall(assigned) if self.settings.remembers else None,
            round=round,
            seed=seed,
            statistics=federation.evaluate.statistics,
            part=assigned.part,
            personal=assigned.personal,
            sabotage=federation.sabotage_of(client),
        )

    @property
    def coverage(self) -> Coverage:
        """Which levels have clients."""
        held = Counter(level for number in self.clients for level in self.levels_held([number]))
        return Coverage(self.levels, held, self.untrained)

    def levels_held(self, clients: Iterable[int]) -> set[int]:
        """Return the numbers of the levels that clients train, if not in every round."""
        assigned = (level for n in clients for level in self.levels_of(self.clients[n]))
        return {each.number for level in assigned for each in self.trained_with(level)}

    @property
    def clients(self) -> dict[int, Client]:
        """Those who take part, by number."""
        return self.roster.clients

    def prepare(self) -> None:
        """Make the levels of what the clients afford, where nothing else says what they are."""
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

    def _as_first_held(self, level: Level) -> Cut:
        own = (n for n, client in self.clients.items() if level in self.levels_of(client))
        return Cut(level, self.window_of(min(own, default=0), self.round))

    def _recall(self, assigned: Assignment) -> Recall:
        checkpoint, last = self.federation.checkpoint, self.last_replies
        return Recall(
            self.run_id,
            last.get(assigned.client.number, 0),
            turn=assigned.turn,
            keep=checkpoint.every * checkpoint.keep + 1,
        )

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
        """Return what the levels were made of, besides the configuration."""
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
