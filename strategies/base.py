"""The base of all strategies: one global state, of which each client trains a slice.

A round: sample clients from (seed, round), cut each one's slice out of the global state, send it,
fold the replies as they arrive, divide, evaluate. What a method does differently it overrides.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor, nn

from models import PREFIX, Window, extract
from models.loading import network_of
from models.slicing import is_running_statistic
from protocol.arrays import pack
from protocol.records import Evaluation, Work
from protocol.records import size as size_of
from strategies.federation import Federation, FederationError, Observer, Tally
from strategies.levels.planning import (
    Level,
    Split,
    cluster_budgets,
    levels_of,
    own_exit_only,
    search_splits,
)
from strategies.levels.submodels import Submodel, Submodels
from strategies.rounds.attendance import Attendance
from strategies.rounds.coverage import describe, require_full_model
from strategies.rounds.enrolment import Client, enrol
from strategies.rounds.evaluation import evaluate_clients, evaluate_levels
from strategies.rounds.folding import Fold
from strategies.rounds.norm_statistics import gather_statistics
from strategies.rounds.streaming import Reply, stream


class NestedStrategy(Strategy):
    """Slices out, slices back, and the mean of what overlaps."""

    trains_early_exits = False
    """Whether a level also holds the exits of the levels below it, which its loss must train."""

    def __init__(
        self,
        federation: Federation,
        evaluate: Callable[[nn.Module], Evaluation],
        observer: Observer | None = None,
    ) -> None:
        self.federation = federation
        self.evaluate_on_server = evaluate
        self.observer = observer or Observer()
        self.round = 0
        self.clients: dict[int, Client] = {}
        self.deaf: dict[int, str] = {}  # nodes that are no clients, and why
        self.silent: set[int] = set()  # clients that did not answer in this round
        self.attendance = Attendance(federation)
        self.tally = Tally(0)
        self.ratios = federation.ratios
        self.levels: list[Level] = []
        self.untrained: set[int] = set()  # levels of which no client has sent a usable reply yet
        if self.ratios or federation.widths or federation.splits:
            self._begin()

    # --- what methods choose ---------------------------------------------------------------

    def plan(self) -> list[Level]:
        """The levels: of given widths or splits, or of Eq. (1) for given shares of the cost."""
        federation = self.federation
        task = federation.task
        if federation.widths:
            splits = [Split(task.units, width) for width in federation.widths]
        elif federation.splits:
            splits = list(federation.splits)
        else:
            ratios = self.ratios or federation.budgets
            splits = search_splits(
                task,
                ratios,
                federation.tolerance,
                federation.cost,
                rounding=federation.rounding,
            )
        levels = levels_of(task, splits, federation.rounding)
        return levels if self.trains_early_exits else [own_exit_only(task, each) for each in levels]

    def private(self, name: str) -> bool:
        """Whether a tensor is kept per level rather than shared between levels."""
        return is_running_statistic(name)

    def level_of(self, client: Client) -> int:
        """The level that a client trains: its tier's, or the largest that its device affords."""
        federation = self.federation
        if client.profile.budget is None and len(self.levels) == len(federation.budgets):
            return self.levels[self._tier_of(client)].number
        full = self.levels[-1].cost.of(federation.cost)
        afforded = self._budget_of(client) * full * (1 + federation.tolerance)
        fitting = [each for each in self.levels if each.cost.of(federation.cost) <= afforded]
        return (fitting or self.levels)[-1 if fitting else 0].number

    def window_of(self, client: int) -> Window:
        """Which channels a client's slice keeps."""
        return PREFIX

    def before_evaluation(self, grid: Grid) -> None:
        """What levels need before they are evaluated: the statistics of static batch norm."""
        gather_statistics(self, grid)

    # --- the run -----------------------------------------------------------------------------

    def start(  # type: ignore[override]
        self, grid: Grid, patience: float = 60.0
    ) -> Result:
        """All rounds that are left, from the first or from where a loaded state ended."""
        self.enrol(grid, patience)
        self.attendance.require_clients(len(self.clients), self.deaf)
        if not self.levels:
            self.ratios = self._ratios_of_the_clients()
            self._begin()
        self.attendance.require_levels(self._levels_of(self.clients), self.deaf)
        self.observer.started(self.levels, self.clients)
        self.summary()
        require_full_model(self)
        if self.federation.weights is not None and not self.round:
            self.observer.finished_round(self._evaluation_of_the_start(grid))
        for number in range(self.round + 1, self.federation.rounds + 1):
            began = time.monotonic()
            self.train_round(number, grid)
            scores = self._evaluations(number, grid)
            metrics = {"round": number, **self.tally.metrics(), **scores}
            if self.deaf:
                metrics["left_out"] = {str(node): why for node, why in self.deaf.items()}
            self.observer.finished_round({**metrics, "seconds": time.monotonic() - began})
        return Result()

    def enrol(self, grid: Grid, patience: float) -> None:
        self.clients, left_out = enrol(
            grid, self.federation, self.clients, self.deaf.keys(), patience
        )
        self.deaf |= left_out

    def _begin(self) -> None:
        """Make the levels and the first global state."""
        federation = self.federation
        self.levels = self.plan()
        self.untrained = {level.number for level in self.levels}
        self.submodels = Submodels(federation.task, self.levels, self.private)
        self.state = self.submodels.initial_state(federation.seed, federation.weights)

    def _ratios_of_the_clients(self) -> tuple[float, ...]:
        """What the levels may cost, by what the clients afford (Task 1 of ScaleFL)."""
        budgets = [min(1.0, self._budget_of(client)) for client in self.clients.values()]
        # The full model is a level in any case: `require_full_model` judges whether one may lack.
        return cluster_budgets([*budgets, 1.0], 1.0, self.federation.levels).ratios

    def _tier_of(self, client: Client) -> int:
        """By the client alone: who else is there may change."""
        parts = client.profile.partitions or self.federation.clients
        return self.federation.tier_of(client.number, max(parts, client.number + 1))

    def _budget_of(self, client: Client) -> float:
        """The share of the full model that a client affords: its device's word, or its tier's."""
        budget = client.profile.budget
        return self.federation.budgets[self._tier_of(client)] if budget is None else budget

    def train_round(self, number: int, grid: Grid) -> None:
        """One round of training, without evaluation."""
        messages = self._begin_round(number, grid)
        window, deadline = self.federation.window, self.federation.deadline
        self._fold(number, stream(grid, messages, window, deadline))
        self.untrained -= {level for level, part in self.tally.slices.items() if part.replied}
        self.round = number

    def sample(self, round: int, available: Sequence[int]) -> list[int]:
        """This round's clients, drawn from (seed, round) over the sorted numbers."""
        generator = np.random.default_rng((self.federation.seed, round))
        count = min(self.federation.clients_per_round, len(available))
        return sorted(generator.choice(sorted(available), count, replace=False).tolist())

    def work(self, client: Client, submodel: Submodel, round: int) -> Work:
        federation = self.federation
        seed = int(np.random.default_rng((federation.seed, round, client.number)).integers(2**31))
        return Work(
            task=federation.task,
            slice=submodel.level.slice,
            dataset=federation.dataset,
            train=federation.train,
            objective=federation.objective,
            objective_settings=federation.objective_settings,
            round=round,
            seed=seed,
            statistics=federation.statistics,
        )

    def submodel_of(self, client: Client) -> Submodel:
        """What a client holds."""
        return self.submodels.at(self.level_of(client), self.window_of(client.number))

    def _begin_round(self, round: int, grid: Grid) -> Iterator[tuple[Client, Message]]:
        """Choose this round's clients; their messages are made one by one."""
        online = set(grid.get_node_ids())
        # Who went away and comes back is asked again.
        self.deaf = {node: why for node, why in self.deaf.items() if node in online}
        if online - self.deaf.keys() - {client.node for client in self.clients.values()}:
            self.enrol(grid, patience=0)
        available = [number for number, client in self.clients.items() if client.node in online]
        self.attendance.note(round, self._levels_of(available))
        if len(available) < (needed := self.federation.required(len(self.clients))):
            raise FederationError(
                f"round {round}: {len(available)} of {len(self.clients)} clients are online, "
                f"{needed} are needed"
            )
        sampled = self.sample(round, available)
        self.tally = Tally(len(sampled))
        return self._counted(self.messages("train", sampled, self.submodel_of, round))

    def _levels_of(self, numbers: Iterable[int]) -> set[int]:
        return {self.level_of(self.clients[number]) for number in numbers}

    def _counted(
        self, messages: Iterable[tuple[Client, Message]]
    ) -> Iterator[tuple[Client, Message]]:
        for client, message in messages:
            self.tally.slices[self.level_of(client)].down += size_of(message.content)
            yield client, message

    def messages(
        self,
        kind: str,
        numbers: Iterable[int],
        submodel_of: Callable[[Client], Submodel],
        round: int,
    ) -> Iterator[tuple[Client, Message]]:
        """A message with its submodel for each client, made when it is asked for."""
        packed: dict[Submodel, ArrayRecord] = {}
        for client in (self.clients[number] for number in numbers):
            submodel = submodel_of(client)
            if submodel not in packed:
                if len(packed) == len(self.levels):  # clients have windows of their own
                    packed.clear()
                packed[submodel] = pack(extract(self.state, submodel.map))
            work = self.work(client, submodel, round).record()
            content = RecordDict({"arrays": packed[submodel], "work": work})
            yield client, Message(content, dst_node_id=client.node, message_type=kind)

    def _fold(self, round: int, replies: Iterable[Reply[Client]]) -> None:
        """Add each reply to the sums as it arrives, then divide."""
        fold = Fold(self.federation, self.submodel_of, self.state, self.tally)
        for reply in replies:
            fold.add(reply)
            self.observer.replied(round, self.tally.done, self.tally.sampled)
        self.silent = fold.silent
        self.state = fold.result(round)

    # --- evaluation --------------------------------------------------------------------------

    def _evaluations(self, round: int, grid: Grid) -> dict[str, Any]:
        metrics: dict[str, Any] = {}
        on_server = self._due(round, self.federation.evaluate_every)
        has_tests = self.federation.dataset.test > 0
        on_clients = has_tests and self._due(round, self.federation.evaluate_clients_every)
        if on_server or on_clients:
            self.before_evaluation(grid)
        if on_server:
            metrics |= evaluate_levels(self)
        if on_clients:
            metrics |= evaluate_clients(self, round, grid, metrics)
        return metrics

    def _evaluation_of_the_start(self, grid: Grid) -> dict[str, Any]:
        """What pre-trained weights are worth when they are cut into levels: round 0.

        The statistics that static norms need for it are not kept, so that it changes no bit.
        """
        began, state = time.monotonic(), self.state
        self.before_evaluation(grid)
        scores = evaluate_levels(self)
        self.state = state
        asked = {key: value for key, value in self.tally.metrics().items() if key == "asked"}
        return {"round": 0, **asked, **scores, "seconds": time.monotonic() - began}

    def _due(self, round: int, every: int) -> bool:
        return round == self.federation.rounds or (every > 0 and round % every == 0)

    # --- state -------------------------------------------------------------------------------

    def network(self, level: int) -> nn.Module:
        """A level's network with its part of the global state, as its first client holds it."""
        own = (number for number, client in self.clients.items() if self.level_of(client) == level)
        submodel = self.submodels.at(level, self.window_of(min(own, default=0)))
        state = extract(self.state, submodel.map)
        return network_of(self.federation.task, submodel.level.slice, state)

    def state_dict(self) -> dict[str, Tensor]:
        """All that a round depends on besides the configuration."""
        return {
            "round": torch.tensor(self.round),
            "ratios": torch.tensor(self.ratios or (), dtype=torch.float64),
            "held": torch.tensor(sorted(self.attendance.held)),
            **({"untrained": torch.tensor(sorted(self.untrained))} if self.untrained else {}),
            **{f"state.{k}": v for k, v in self.state.items()},
        }

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        if not self.levels:
            self.ratios = tuple(tensors["ratios"].tolist())
            self._begin()
        state = {k.removeprefix("state."): v for k, v in tensors.items() if k.startswith("state.")}
        different = {
            name
            for name in state.keys() | self.state.keys()
            if name not in state
            or name not in self.state
            or state[name].shape != self.state[name].shape
        }
        if different:
            raise FederationError(
                f"the checkpoint is of another model or plan: {sorted(different)[:3]} and "
                f"{max(0, len(different) - 3)} more differ"
            )
        self.state, self.round = dict(state), int(tensors["round"])
        self.attendance.held = set(tensors["held"].tolist()) if "held" in tensors else set()
        self.untrained = set(tensors["untrained"].tolist()) if "untrained" in tensors else set()

    def summary(self) -> None:
        """Say what the levels are, and who trains them."""
        describe(self)

    # --- Flower's phases of a round: here `start` runs it as one, and folds while replies come ---

    def configure_train(self, *_: Any, **__: Any) -> Iterable[Message]:
        raise NotImplementedError("a nested strategy runs its rounds itself: call start")

    aggregate_train = configure_evaluate = aggregate_evaluate = configure_train  # type: ignore[assignment]
