"""Runs a federation round by round: send slices, aggregate the replies, evaluate the levels.

One round, with the method that does each step:

1. `_begin_round` samples clients from (seed, round) and assigns each client its slice.
2. `messages` cuts each slice out of the global state when its message is sent.
3. `_end_round` checks and folds each reply as it arrives, then takes the server step.
4. `_evaluations` tests the levels on the server and on clients, where a test is due.

`start` runs the loop and keeps only a few messages in flight, so memory does not grow with the
number of clients. Flower's own loop (`Strategy.start`, wrappers, other ServerApps) calls
`configure_train`, `aggregate_train`, `configure_evaluate` and `aggregate_evaluate` instead. Both
loops take the same steps and end with the same weights, bit for bit.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from torch import nn

from models import State
from protocol.records import size as size_of
from strategies.assignment import Assignment
from strategies.coverage import describe, require_full_model
from strategies.evaluation import (
    Evaluate,
    client_scores,
    client_tests,
    evaluate_submodels,
    with_statistics,
    worst_tenths,
)
from strategies.federation import Federation, FederationError, Test
from strategies.method import Method
from strategies.method_checks import Unsaved, form_of, require_state
from strategies.method_settings import MethodSettings
from strategies.nodes.exchange import Key, Reply, Sent, received, sent, stream
from strategies.observer import Observer
from strategies.replies import Folding, Tally, answers_in, ask, asked

PATIENCE = 60.0
"""Seconds that a run waits for its clients at the start."""

log = logging.getLogger("flwr")  # the logger that `flwr log` shows

EvaluateArrays = Callable[[int, ArrayRecord], MetricRecord | None]


class NestedStrategy(Method, Strategy):
    """A Flower strategy that runs a method: each client trains a slice of the global network.

    The methods in `strategies/methods` are its subclasses. They override the seams of `Method`; the
    steps of a round stay the same for all.
    """

    def __init__(
        self,
        federation: Federation,
        settings: MethodSettings,
        evaluate: Evaluate | None = None,
        observer: Observer | None = None,
        weights: State | None = None,
    ) -> None:
        """Prepare a run.

        `evaluate` tests a network on the server. `observer` is told of each step of the run.
        `weights` are pre-trained weights of the full network to start from.
        """
        super().__init__(federation, settings, weights)
        self.evaluate, self.observer = evaluate, observer or Observer()
        self.tally = Tally(0)
        self._sent: dict[Key, Sent[Assignment]] = {}
        self._asked: dict[Key, Sent[Assignment]] = {}
        self._record: ArrayRecord | None = None
        """The global state's record that Flower's own loop holds; None in our loop."""
        self._unsaved = Unsaved(self)

    # --- our loop ------------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateArrays | None = None,
    ) -> Result:
        """Run the rounds that are left: all of a new run, or those after a loaded state.

        Arguments that are not given come from the federation: first weights, rounds, deadline. A
        smaller `num_rounds` runs the first rounds of the federation's schedule, as Flower's loop
        does.
        """
        last, result = self.federation.rounds if num_rounds is None else num_rounds, Result()
        if missed := tests_missed(self.federation, last):
            rounds, named = self.federation.rounds, ", ".join(sorted(missed))
            log.warning(
                f"num_rounds is {last}, but rounds is {rounds}: tests that are due after round "
                f"{rounds} alone are not made ({named}); compose the config with rounds={last}"
            )
        if timeout is not None:
            self.federation = self.roster.federation = replace(self.federation, deadline=timeout)
        self._open(grid, initial_arrays)
        if evaluate_fn and not self.round and (found := evaluate_fn(0, self.arrays())):
            result.evaluate_metrics_serverapp[0] = found
        if self.weights is not None and not self.round:
            self.observer.finished_round(self._evaluation_of_the_start(grid))
        for number in range(self.round + 1, last + 1):
            began = time.monotonic()
            self.train_round(number, grid, train_config)
            result.train_metrics_clientapp[number] = self.tally.record()
            trained = time.monotonic()
            scores = self._evaluations(number, grid, evaluate_config)
            tested = time.monotonic() - trained
            if means := self._means(scores):
                result.evaluate_metrics_clientapp[number] = means
            if evaluate_fn and (found := evaluate_fn(number, self.arrays())):
                result.evaluate_metrics_serverapp[number] = found
            metrics = {"round": number, **self.tally.metrics(), **scores}
            metrics |= worst_tenths(metrics)
            if left_out := self.roster.left_out:
                metrics["left_out"] = {str(node): why for node, why in left_out.items()}
            seconds = {"test_seconds": tested, "seconds": time.monotonic() - began}
            self.observer.finished_round({**metrics, **seconds})
        result.arrays = self.arrays()
        return result

    def train_round(self, number: int, grid: Grid, config: ConfigRecord | None = None) -> None:
        """Run one round of training, without evaluation."""
        work = self._begin_round(number, grid, config)
        outgoing = self._counted(self.messages("train", work, number))
        federation = self.federation
        replies = stream(grid, outgoing, federation.in_flight, federation.deadline)
        self._end_round(number, replies)

    # --- Flower's contract -----------------------------------------------------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages of a round as an iterator; each is built when it is requested."""
        if not self.clients:
            self._open(grid, arrays)
        elif arrays is not self._record:
            self._adopt(arrays)
        self._record = arrays
        self._sent.clear()
        work = self._begin_round(server_round, grid, config)
        return sent(self._counted(self.messages("train", work, server_round)), self._sent)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord, MetricRecord]:
        """Fold a round's replies; return the global state and the mean training loss."""
        self._end_round(server_round, received(replies, self._sent))
        self._record = self.arrays()
        return self._record, self.tally.record()

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the messages of the clients' tests that are due in this round.

        Where the network has static norms, their statistics are gathered first and entered into
        `arrays`, because the submodels are tested with them.
        """
        self._asked.clear()
        if arrays is not self._record:
            self._adopt(arrays)
            self._record = arrays
        due = self.federation.evaluations_due(server_round)
        if due:
            before, self.state = self.state, self._with_statistics(grid)
            fresh = {k: v for k, v in self.state.items() if v is not before[k]}
            arrays.update(ArrayRecord(fresh))
        questions = client_tests(self, due, config, self.tally)
        return sent(asked(self, "evaluate", questions, self.tally), self._asked)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the clients' mean accuracy of their own level and of the full model.

        With validation data it also holds the validation score: see `checkpoint.best`.
        """
        answers = answers_in(received(replies, self._asked), self.tally)
        return self._means(client_scores(self, answers, self.tally, {}))

    def summary(self) -> None:
        """Log each level's costs and number of clients."""
        if self.clients and self.levels:
            clients = self.clients.values()
            describe(self.federation, self.settings, self.coverage, clients)

    def arrays(self) -> ArrayRecord:
        """Return the global state as a Flower record."""
        return ArrayRecord({name: tensor.contiguous() for name, tensor in self.state.items()})

    def level_network(self, arrays: ArrayRecord, level: int) -> nn.Module:
        """Return a level's network with its slice of these arrays, such as a result's arrays.

        The network is a plain torch module in evaluation mode. Its output is a list of logits, one
        for each exit of the level. Levels are counted from 1; the last is the full model.
        """
        if not self.levels:
            raise FederationError("there are no levels yet: they are made when clients have come")
        if level not in range(1, len(self.levels) + 1):
            raise ValueError(f"level is {level}: expected 1 to {len(self.levels)}")
        state = arrays.to_torch_state_dict()
        self.require_form(state, "the arrays")
        submodel = self.submodels.of(self._as_first_held(self.levels[level - 1]))
        return self.submodels.network(submodel, state).eval()

    # --- the steps of a round --------------------------------------------------------------------

    def _open(self, grid: Grid, arrays: ArrayRecord | None) -> None:
        """Enrol the clients, make the levels, and check that the run can begin."""
        if arrays and self.levels:
            self._adopt(arrays)
        self.roster.enrol(grid, PATIENCE)
        self.roster.require_clients()
        had_levels = bool(self.levels)
        self.prepare()
        if arrays and not had_levels:
            self._adopt(arrays)
        self.roster.require_levels(self.coverage.trained_by(self.clients))
        self.observer.started(self.coverage, self.clients)
        self.summary()
        require_full_model(self.federation, self.settings, self.coverage, self.clients.values())
        self._unsaved.look()

    def _adopt(self, arrays: ArrayRecord) -> None:
        self.adopt(arrays.to_torch_state_dict())

    def _begin_round(self, round: int, grid: Grid, config: ConfigRecord | None) -> list[Assignment]:
        """Sample the clients that are online; return an assignment for each."""
        online = self.roster.online(grid)
        self.roster.note(round, self.coverage.trained_by(online))
        self.roster.require_online(round, len(online))
        work = self.assignments(round, online, config)
        self.tally = Tally(len(work), language=self.federation.task.tells_words)
        return work

    def _counted(
        self, outgoing: Iterable[tuple[Assignment, Message]]
    ) -> Iterator[tuple[Assignment, Message]]:
        for assigned, message in outgoing:
            self.tally.slices[assigned.level].down += size_of(message.content)
            yield assigned, message

    def _end_round(self, round: int, replies: Iterable[Reply[Assignment]]) -> None:
        """Fold each reply as it arrives, then take the method's server step."""
        folding = Folding(self, self.tally)
        for reply in replies:
            folding.add(reply)
            self.observer.replied(round, self.tally.done, self.tally.sampled)
        self.roster.unanswered = folding.unanswered
        state, self.round, form = folding.result(round), round, form_of(self.state)
        self.state = require_state(self.server_step(state, self.state), form, self._source(round))
        for number, part in self.tally.slices.items():
            if part.replied:
                self.untrained -= {e.number for e in self.trained_with(self.levels[number - 1])}
        if self.settings.remembers:
            self.last_replies |= {client: round for client, _ in folding.losses}
        self._unsaved.look()

    def _source(self, round: int) -> str:
        """Return the step that makes this round's state, for error messages."""
        own = type(self).server_step is not Method.server_step
        what = f"server_step of {self.settings.name}" if own else "the aggregation"
        return f"round {round}: {what}"

    # --- evaluation ------------------------------------------------------------------------------

    def _evaluations(self, round: int, grid: Grid, config: ConfigRecord | None) -> dict[str, Any]:
        """Return the scores of the tests that are due in this round; empty where no test is due."""
        due, scores = self.federation.evaluations_due(round), dict[str, Any]()
        if due:
            self.state = self._with_statistics(grid)
        if "server" in due and self.evaluate is not None:
            scores = evaluate_submodels(self, self.evaluate)
        if questions := client_tests(self, due, config, self.tally):
            answers = ask(self, "evaluate", questions, grid, self.tally, self.observer)
            scores |= client_scores(self, answers, self.tally, scores.get("levels", {}))
        return scores

    def _evaluation_of_the_start(self, grid: Grid) -> dict[str, Any]:
        """Return the scores of pre-trained weights before training, cut into levels: round 0.

        The statistics of static norms that this test gathers are dropped: training starts from the
        same bits with and without it.
        """
        began, state = time.monotonic(), self.state
        self.state = self._with_statistics(grid)
        scores = evaluate_submodels(self, self.evaluate) if self.evaluate else {}
        self.state = state
        asked = {key: value for key, value in self.tally.metrics().items() if key == "asked"}
        return {"round": 0, **asked, **scores, "seconds": time.monotonic() - began}

    def _with_statistics(self, grid: Grid) -> State:
        return with_statistics(self, grid, self.tally, self.observer)

    def _means(self, scores: Mapping[str, Any]) -> MetricRecord | None:
        """Return the means of the clients' tests as a Flower record; None without such tests."""
        found = {what: scores[what] for what in self.tally.asked if what in scores}
        return MetricRecord(found) if found else None


def tests_missed(federation: Federation, last: int) -> set[Test]:
    """Return the tests due in the planned last round, but in no round up to `last`."""
    made = {test for number in range(1, last + 1) for test in federation.evaluations_due(number)}
    return federation.evaluations_due(federation.rounds) - made
