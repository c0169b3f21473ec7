"""Answers inputs with a trained level within a budget: the Predictor of `nestfl predict`."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Literal, TypeVar

import torch
from torch import Tensor

from data.clients import ClientData, all_clients, global_test
from data.examples import Examples
from data.inputs import Inputs
from inference import (
    Answers,
    BudgetError,
    RunningEnsemble,
    WholeEnsemble,
    anytime,
    cheapest_thresholds,
    classify,
    exits_taken,
    fit_thresholds,
    freeze,
    milliseconds,
    needs_statistics,
    only_last_exit,
    scores,
)
from models.families import SlicedNetwork
from server_app.record.summary import BudgetFacts
from server_app.trained_level import RestoredLevel, TrainedRun
from strategies.levels.cost import macs_by_exit
from training.devices import Placement
from training.testing import evaluation_batches

CALIBRATION_BATCHES = 16
"""Batches of up to 256 training examples, on which norm statistics are gathered."""
LEAST_SECONDS = 2.0
"""Least seconds that the timing of budgets takes."""
REPORT_BATCH = 256
"""Inputs that are answered at once."""
log = logging.getLogger("flwr")  # the logger that `flwr log` shows
Batch = TypeVar("Batch")
Watch = Callable[[Iterable[Batch], int, str], Iterator[Batch]]
"""Passes batches on; its other arguments are their greatest number and their purpose."""


def unwatched(batches: Iterable[Batch], count: int, what: str) -> Iterator[Batch]:
    """Return the batches unchanged, without showing progress."""
    return iter(batches)


CostUnit = Literal["share", "ms"]
"""Share of the MACs of always running to the end, or milliseconds."""


@dataclass(frozen=True)
class Prices:
    """The cost of a sample that leaves at each exit, and of one that runs to the end.

    The latter passes no early head, unless the answer is the ensemble of all exits.
    """

    exits: tuple[float, ...]
    full: float

    @property
    def shares(self) -> Prices:
        """Return the prices as shares of the full one."""
        return Prices(tuple(price / self.full for price in self.exits), 1.0)


@dataclass(frozen=True)
class Plan:
    """The threshold of each exit; without thresholds all samples run to the end.

    Those samples pass no early head, unless the answer is the ensemble of all exits.
    """

    thresholds: tuple[float, ...] | None


TO_THE_END = Plan(None)


@dataclass(frozen=True)
class Result:
    """The accuracy and the cost of a plan on given inputs."""

    accuracy: float | None
    """None without labels."""
    macs: float
    """Mean per sample."""
    share: float
    """MACs as a share of the full cost."""
    exits: tuple[float, ...]
    """Share of the samples that left at each exit."""


class Predictor:
    """Classifies inputs with a level's network, on the device and layout that suit this machine.

    An ensemble answers at each exit with the mean of the logits up to it.
    """

    def __init__(
        self, level: RestoredLevel, batch_size: int, watch: Watch[Tensor] = unwatched
    ) -> None:
        self.level, self.batch_size, self.watch = level, batch_size, watch
        self.place = Placement.of(level.settings, level.net)
        net = level.net.to(self.place.device)
        if needs_statistics(net) or level.outdated_statistics:
            batches = islice(evaluation_batches(self._clients.train), CALIBRATION_BATCHES)
            placed = (self._placed(images) for images, _ in batches)
            net = freeze(net, self.watch(placed, CALIBRATION_BATCHES, "gathering statistics"))
        self.frozen = net
        """The level's network for answering, with all statistics that it needs."""
        self.net: SlicedNetwork = RunningEnsemble(net) if level.ensemble else net
        self.to_the_end = (
            WholeEnsemble(net) if level.ensemble else only_last_exit(net, level.exits[-1])
        )

    @cached_property
    def _clients(self) -> ClientData:
        return all_clients(self.level.dataset)

    @cached_property
    def _validation(self) -> Examples:
        """Return the examples for fitting thresholds; they are in no training and no test part."""
        found = self._clients.validation
        if not len(found):
            raise BudgetError(
                "no validation data to fit thresholds on: the run had dataset.validation=0; "
                "give a --threshold"
            )
        return found

    @cached_property
    def scores(self) -> Tensor:
        """Return each exit's confidence in each of the clients' validation examples, [exits, n]."""
        return scores(self.net, self.batches(self._validation, "fitting thresholds"))

    @cached_property
    def _hits(self) -> Tensor:
        """Return whether each exit is right about each validation example, [exits, n]."""
        return self.sure_and_right(self._validation, "fitting thresholds")[1]

    def sure_and_right(self, data: Examples, what: str = "answering") -> tuple[Tensor, Tensor]:
        """Return each exit's confidence and correctness for each example, [exits, n] each."""
        confidence, classes = [], []
        for batch in self.batches(data, what):
            answers = list(anytime(self.net, batch))
            confidence.append(torch.stack([each.confidence for each in answers]).cpu())
            classes.append(torch.stack([each.classes for each in answers]).cpu())
        return torch.cat(confidence, 1), torch.cat(classes, 1) == data.labels

    @cached_property
    def macs(self) -> Prices:
        """Prices in multiply-accumulates, counted."""
        task, held = self.level.task, self.level.slice
        passed = held if self.level.ensemble else replace(held, exits=self.level.exits[-1:])
        full = macs_by_exit(task, passed)[-1]
        return Prices(tuple(map(float, macs_by_exit(task, held))), full)

    @cached_property
    def milliseconds(self) -> Prices:
        """Prices in milliseconds, measured on this machine in batches of the given size."""
        batch = next(self.batches(self._validation))
        (full,) = milliseconds(self.to_the_end, batch)
        return Prices(tuple(milliseconds(self.net, batch)), full)

    def plan_for_budget(self, budget: float, unit: CostUnit) -> Plan:
        """Return the thresholds whose average cost on validation data is the budget."""
        prices = self.macs.shares if unit == "share" else self.milliseconds
        if budget >= prices.full:
            return TO_THE_END
        self._require_early_exits()
        return Plan(tuple(fit_thresholds(self.scores, prices.exits, budget)))

    def plan_for_loss(self, points: float) -> Plan:
        """Return the cheapest thresholds that lose at most `points` on validation data."""
        self._require_early_exits()
        exits, full = self.macs.exits, self.macs.full
        thresholds = cheapest_thresholds(self.scores, self._hits, exits, points / 100)
        taken = exits_taken(self.scores, thresholds)
        paid = float(torch.tensor(exits, dtype=torch.float64)[taken].mean())
        return Plan(tuple(thresholds)) if paid < full else TO_THE_END

    def plan_for_threshold(self, threshold: float) -> Plan:
        """Return a plan with this threshold for all exits."""
        self._require_early_exits()
        return Plan((threshold,) * (len(self.level.exits) - 1))

    def _require_early_exits(self) -> None:
        if len(self.level.exits) == 1:
            raise BudgetError(f"level {self.level.number} has one exit: it always runs to the end")

    def answer(self, batch: Tensor, plan: Plan) -> Answers:
        """Answer a batch; moving the answers to the CPU makes timing include the GPU's work."""
        if plan.thresholds is not None:
            return joined([classify(self.net, batch, plan.thresholds)])
        found = joined([classify(self.to_the_end, batch, ())])
        return replace(found, exits=torch.full_like(found.exits, len(self.level.exits) - 1))

    def answer_all(self, data: Examples, plan: Plan) -> Answers:
        """Return the answers to all examples, in batches."""
        return joined([self.answer(batch, plan) for batch in self.batches(data)])

    def judge(self, answers: Answers, plan: Plan, inputs: Inputs) -> Result:
        """Return the accuracy and cost of the answers."""
        hits = answers.classes == inputs.data.labels
        counts = torch.bincount(answers.exits, minlength=len(self.level.exits))
        paid = torch.tensor(self.macs.exits, dtype=torch.float64)[answers.exits].mean()
        macs = self.macs.full if plan.thresholds is None else float(paid)
        return Result(
            accuracy=float(hits.float().mean()) if inputs.labelled else None,
            macs=macs,
            share=macs / self.macs.full,
            exits=tuple((counts / len(hits)).tolist()),
        )

    def batches(self, data: Examples, what: str = "answering") -> Iterator[Tensor]:
        """Yield the examples' inputs in batches, on the device that answers."""
        placed = (self._placed(images) for images, _ in data.batches(self.batch_size))
        return self.watch(placed, math.ceil(len(data) / self.batch_size), what)

    def _placed(self, images: Tensor) -> Tensor:
        images = images.to(self.place.device)
        return images.contiguous(memory_format=self.place.layout) if images.ndim == 4 else images


def joined(parts: Sequence[Answers]) -> Answers:
    """Join the answers to several batches, on the CPU."""
    return Answers(
        torch.cat([part.classes for part in parts]).cpu(),
        torch.cat([part.exits for part in parts]).cpu(),
        torch.cat([part.confidence for part in parts]).cpu(),
    )


@dataclass(frozen=True)
class Outcome:
    """The result of a budget, which is a share of the full cost; times were measured here."""

    budget: float
    thresholds: tuple[float, ...] | None
    result: Result
    milliseconds: float
    """Mean per sample."""
    speedup: float
    """Relative to always running to the end."""


def compare(predictor: Predictor, inputs: Inputs, budgets: int = 8) -> list[Outcome]:
    """Measure `budgets` budgets, from the first exit's cost to the full cost."""
    shares = _steps(predictor.macs.shares.exits, budgets)
    plans = [predictor.plan_for_budget(share, "share") for share in shares]
    answers, seconds = side_by_side(predictor, inputs.data, plans)
    return [
        Outcome(
            budget=share,
            thresholds=plan.thresholds,
            result=predictor.judge(given, plan, inputs),
            milliseconds=1000 * taken / len(inputs.data),
            speedup=seconds[-1] / taken,
        )
        for share, plan, given, taken in zip(shares, plans, answers, seconds, strict=True)
    ]


@dataclass(frozen=True)
class BudgetPoint:
    """The MACs per sample and the accuracy at a budget, which is a share of the full cost."""

    budget: float
    macs: float
    accuracy: float


def front(predictor: Predictor, data: Examples, budgets: int = 8) -> list[BudgetPoint]:
    """Return the results of budgets below the full cost: one pass over the data, no timing."""
    *shares, _ = _steps(predictor.macs.shares.exits, budgets)
    if not shares:
        return []
    sure, right = predictor.sure_and_right(data)
    prices, points = torch.tensor(predictor.macs.exits, dtype=torch.float64), []
    for share in shares:
        thresholds = predictor.plan_for_budget(share, "share").thresholds
        assert thresholds is not None  # the budget is less than the full cost
        taken = exits_taken(sure, thresholds)
        accuracy = float(right.gather(0, taken[None]).double().mean())
        points.append(BudgetPoint(share, float(prices[taken].mean()), accuracy))
    return points


def side_by_side(
    predictor: Predictor, data: Examples, plans: Sequence[Plan]
) -> tuple[list[Answers], list[float]]:
    """Return each plan's answers, and its seconds for one pass over the data.

    The plans take turns on each batch, so that a busy machine slows all of them equally.
    """
    first = next(predictor.batches(data))
    for plan in plans:
        predictor.answer(first, plan)
    seconds, passes = [0.0] * len(plans), 0
    parts: list[list[Answers]] = []
    while not passes or sum(seconds) < LEAST_SECONDS:
        passes, parts = passes + 1, [[] for _ in plans]
        for batch in predictor.batches(data, f"timing budgets, pass {passes}"):
            for number, plan in enumerate(plans):
                start = time.perf_counter()
                parts[number].append(predictor.answer(batch, plan))
                seconds[number] += time.perf_counter() - start
    return [joined(part) for part in parts], [total / passes for total in seconds]


def _steps(exits: Sequence[float], count: int) -> list[float]:
    """Return shares of the full cost, from the first exit's to 1; 1 is always included."""
    least = exits[0]
    if len(exits) == 1 or least >= 1:
        return [1.0]
    steps = [least + (1 - least) * step / (count - 1) for step in range(count - 1)]
    # Rounded up, so that a budget copied from a table is enough.
    return [*(math.ceil(1000 * step) / 1000 for step in steps), 1.0]


def budgets_of(run: Path) -> dict[str, list[BudgetFacts]]:
    """Return the accuracy at each budget, by level, for trained levels with several exits.

    The thresholds are fitted on the clients' validation parts; without any, the reason is logged.
    """
    found: dict[str, list[BudgetFacts]] = {}
    try:
        trained = TrainedRun(run)
        for level in map(trained.level, trained.levels):
            one_answer = level.dataset.holds != "language"  # all words of a text take the same exit
            if len(level.exits) > 1 and one_answer and not level.untrained:
                points = front(Predictor(level, REPORT_BATCH), global_test(level.dataset))
                found[str(level.number)] = [
                    {"budget": each.budget, "macs": each.macs, "accuracy": each.accuracy}
                    for each in points
                ]
    except Exception as error:  # whatever the error, the run's results are complete
        log.info("the report is without budgets: %s", error)
    return found
