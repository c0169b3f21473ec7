"""The base of all strategies: one global state, of which each client trains a slice.

A round: sample clients from (seed, round), cut each one's slice out of the global state, send it,
fold the replies as they arrive, divide, evaluate. What a method does differently it overrides.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import Tensor, nn

from models import extract
from models.slicing import is_running_statistic
from protocol.records import Evaluation, ProtocolError, Trained, Work, pack, unpack
from protocol.records import size as size_of
from strategies.aggregation import NestedMean, RefusedStateError
from strategies.enrolment import Client, enrol
from strategies.federation import Federation, FederationError, Observer, Tally
from strategies.planning import Level, Split, levels_of, own_exit_only, search_splits
from strategies.streaming import Reply, stream
from strategies.submodels import Submodel, initial_state, make_submodels


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
        self.levels = self.plan()
        self.submodels = make_submodels(federation.task, self.levels, self.private)
        self.state = initial_state(
            federation.task, self.submodels.values(), federation.seed, federation.weights
        )
        self.clients: dict[int, Client] = {}
        self.silent: set[int] = set()  # who did not answer in this round
        self.tally = Tally(0)

    # --- what methods choose ---------------------------------------------------------------

    def plan(self) -> list[Level]:
        """The levels: of given widths, or of Eq. (1) for the given shares of the cost."""
        federation = self.federation
        task = federation.task
        if federation.widths is not None:
            splits = [Split(task.units, width) for width in federation.widths]
        else:
            ratios = federation.ratios or federation.budgets
            splits = search_splits(task, ratios, federation.tolerance, federation.cost)
        levels = levels_of(task, splits, federation.rounding)
        return levels if self.trains_early_exits else [own_exit_only(task, each) for each in levels]

    def private(self, name: str) -> bool:
        """Whether a tensor is kept per level rather than shared between levels."""
        return is_running_statistic(name)

    def level_of(self, client: Client) -> int:
        """The level that a client trains: the largest it affords, or its tier's."""
        federation = self.federation
        if client.profile.budget is None:
            tier = federation.tier_of(client.number, max(federation.clients, len(self.clients)))
            return self.levels[min(tier, len(self.levels) - 1)].number
        full = self.levels[-1].cost.of(federation.cost)
        affordable = [
            level.number
            for level in self.levels
            if level.cost.of(federation.cost)
            <= client.profile.budget * full * (1 + federation.tolerance)
        ]
        return affordable[-1] if affordable else self.levels[0].number

    def before_evaluation(self, grid: Grid) -> None:
        """Called when levels are about to be evaluated."""

    # --- the run -----------------------------------------------------------------------------

    def start(  # type: ignore[override]
        self, grid: Grid, patience: float = 60.0
    ) -> Result:
        """All rounds that are left, from the first or from where a loaded state ended."""
        self.clients = enrol(grid, self.federation, self.clients, patience)
        if not self.clients:
            raise FederationError(f"no client answered within {patience:g} s")
        self.observer.started(self.levels, len(self.clients))
        self.summary()
        for number in range(self.round + 1, self.federation.rounds + 1):
            began = time.monotonic()
            self.train_round(number, grid)
            metrics = {"round": number, **self.tally.metrics(), **self._evaluations(number, grid)}
            self.observer.finished_round({**metrics, "seconds": time.monotonic() - began})
        return Result()

    def train_round(self, number: int, grid: Grid) -> None:
        """One round of training, without evaluation."""
        messages = self._messages(number, grid)
        window, deadline = self.federation.window, self.federation.deadline
        self._fold(number, stream(grid, messages, window, deadline))
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
            dataset=replace(federation.dataset, clients=max(1, len(self.clients))),
            train=federation.train,
            objective=federation.objective,
            round=round,
            seed=seed,
        )

    def _messages(self, round: int, grid: Grid) -> Iterator[tuple[Client, Message]]:
        online = set(grid.get_node_ids())
        if online - {client.node for client in self.clients.values()}:
            self.clients = enrol(grid, self.federation, self.clients, patience=0)
        available = [number for number, client in self.clients.items() if client.node in online]
        if not available:
            raise FederationError(f"round {round}: none of {len(self.clients)} clients is online")
        sampled = self.sample(round, available)
        self.tally = Tally(len(sampled))
        packed: dict[int, ArrayRecord] = {}  # a level's slice is the same for all its clients
        for number in sampled:
            client = self.clients[number]
            submodel = self.submodels[self.level_of(client)]
            if submodel.number not in packed:
                packed[submodel.number] = pack(extract(self.state, submodel.map))
            content = RecordDict(
                {
                    "arrays": packed[submodel.number],
                    "work": self.work(client, submodel, round).record(),
                }
            )
            self.tally.slices[submodel.number].down += size_of(content)
            yield client, Message(content, dst_node_id=client.node, message_type="train")

    def _fold(self, round: int, replies: Iterable[Reply[Client]]) -> None:
        """Add each reply to the sums as it arrives, then divide."""
        examples = [client.profile.examples for client in self.clients.values()]
        by_examples = self.federation.weighting == "examples"
        mean = NestedMean(unit=max(1.0, float(np.mean(examples))) if by_examples else 1.0)
        losses: dict[int, float] = {}
        self.silent = set()
        for reply in replies:
            self.tally.done += 1
            if reply.message is None:
                self.silent.add(reply.to.number)
                self.tally.failed[reply.failure or "failed"] += 1
                self.tally.details[reply.failure or "failed"] = reply.detail
            else:
                try:
                    trained = self._accept(reply.to, reply.message, mean, by_examples)
                    losses[reply.to.number] = trained.loss
                    self.tally.accepted += 1
                except RefusedStateError as refusal:
                    self.tally.refused[refusal.reason] += 1
                    self.tally.details[refusal.reason] = str(refusal)
            self.observer.replied(round, self.tally.done, self.tally.sampled)
        self.tally.loss = sum(losses[number] for number in sorted(losses))
        self._require_enough(round)
        self.state = mean.result(self.state)

    def _accept(
        self, client: Client, message: Message, mean: NestedMean, by_examples: bool
    ) -> Trained:
        submodel = self.submodels[self.level_of(client)]
        content = message.content
        sums = self.tally.slices[submodel.number]
        sums.up += size_of(content)
        try:
            trained = Trained.read(content)
            state = unpack(content.array_records["arrays"], submodel.form)
        except (ProtocolError, KeyError, ValueError) as error:
            raise RefusedStateError("shape", str(error)) from None
        if not 1 <= trained.examples <= client.profile.examples:
            raise RefusedStateError(
                "examples",
                f"{trained.examples} claimed, but client {client.number} has "
                f"{client.profile.examples}",
            )
        if not math.isfinite(trained.loss):
            raise RefusedStateError("non-finite", f"the loss is {trained.loss}")
        mean.add(state, submodel.map, trained.examples if by_examples else 1.0)
        sums.replied += 1
        return trained

    def _require_enough(self, round: int) -> None:
        needed = max(1, math.ceil(self.federation.min_replies * self.tally.sampled))
        if self.tally.accepted < needed:
            reasons = {**self.tally.failed, **self.tally.refused}
            described = "; ".join(
                f"{count} {reason} ({self.tally.details.get(reason) or 'no detail'})"
                for reason, count in reasons.items()
            )
            raise FederationError(
                f"round {round}: {self.tally.accepted} of {self.tally.sampled} clients gave a "
                f"usable reply, {needed} are needed: {described}"
            )

    # --- evaluation --------------------------------------------------------------------------

    def _evaluations(self, round: int, grid: Grid) -> dict[str, Any]:
        metrics: dict[str, Any] = {}
        if self._due(round, self.federation.evaluate_every):
            self.before_evaluation(grid)
            metrics |= self._evaluate_levels()
        if self._due(round, self.federation.evaluate_clients_every):
            metrics |= self._evaluate_clients(round, grid)
        return metrics

    def _due(self, round: int, every: int) -> bool:
        return round == self.federation.rounds or (every > 0 and round % every == 0)

    def _evaluate_levels(self) -> dict[str, Any]:
        """Every level and every exit on the global test set; worst and mean over levels (NeFL)."""
        levels: dict[str, Any] = {}
        for submodel in self.submodels.values():
            found = self.evaluate_on_server(self.network(submodel))
            exits = submodel.level.slice.exits or (self.federation.task.units,)
            levels[str(submodel.number)] = {
                "accuracy": found.accuracy[-1],
                "exits": {
                    str(unit): {"accuracy": accuracy, "loss": loss}
                    for unit, accuracy, loss in zip(exits, found.accuracy, found.loss, strict=True)
                },
            }
        accuracies = [level["accuracy"] for level in levels.values()]
        return {
            "levels": levels,
            "worst": min(accuracies),
            "mean": sum(accuracies) / len(accuracies),
        }

    def _evaluate_clients(self, round: int, grid: Grid) -> dict[str, Any]:
        """ScaleFL's local and global accuracy: own level and full model, on each client."""
        answers: dict[str, float] = {}
        whole = self.submodels[self.levels[-1].number]
        for kind in ("local", "global"):
            chosen = {
                number: self.submodels[self.level_of(client)] if kind == "local" else whole
                for number, client in self.clients.items()
            }
            found = self._ask(grid, "evaluate", chosen, round)
            scores = [Evaluation.read(content).accuracy[-1] for _, content in sorted(found.items())]
            if scores:
                answers[kind] = sum(scores) / len(scores)
        return answers

    def _ask(
        self, grid: Grid, kind: str, chosen: Mapping[int, Submodel], round: int
    ) -> dict[int, RecordDict]:
        """Send each client a submodel, and collect what they answer; failures are left out.

        Whoever did not answer in this round is not asked: a dead node would take a deadline more.
        """

        def messages() -> Iterator[tuple[int, Message]]:
            for number, submodel in chosen.items():
                if number in self.silent:
                    continue
                content = RecordDict(
                    {
                        "arrays": pack(extract(self.state, submodel.map)),
                        "work": self.work(self.clients[number], submodel, round).record(),
                    }
                )
                node = self.clients[number].node
                yield number, Message(content, dst_node_id=node, message_type=kind)

        replies = stream(grid, messages(), self.federation.window, self.federation.deadline)
        return {reply.to: reply.message.content for reply in replies if reply.message is not None}

    # --- state -------------------------------------------------------------------------------

    def network(self, submodel: Submodel) -> nn.Module:
        """A level's network with its part of the global state."""
        net = self.federation.task.build(submodel.level.slice, device="meta").to_empty(device="cpu")
        net.load_state_dict(extract(self.state, submodel.map))
        return net

    def state_dict(self) -> dict[str, Tensor]:
        """All that a round depends on besides the configuration."""
        return {
            "round": torch.tensor(self.round),
            **{f"state.{k}": v for k, v in self.state.items()},
        }

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
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

    # --- Flower's interface ------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return (message for _, message in self._messages(server_round, grid))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        by_node = {client.node: client for client in self.clients.values()}
        self._fold(server_round, (Reply(by_node[m.metadata.src_node_id], m) for m in replies))
        return pack(self.state), MetricRecord({"loss": self.tally.loss})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        return None

    def summary(self) -> None:
        """Say what the levels are."""
