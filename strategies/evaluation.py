"""Evaluates the levels: each exit on the server's test set, and models on clients' own data."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from statistics import fmean
from typing import Any

import torch
from flwr.app import ConfigRecord
from flwr.serverapp import Grid
from torch import Tensor, nn

from inference.topology import serve
from models import Slice, SliceMap, State
from models.layers import StaticBatchNorm2d
from models.slicing import is_running_statistic
from models.task import Task
from protocol.reading import ProtocolError
from protocol.records import read_slice
from protocol.reports import Answered, Evaluation, Trained
from strategies.aggregation.update import RefusedUpdateError, Update
from strategies.assignment import Assignment
from strategies.federation import FleetConfig, Test
from strategies.levels.submodels import Submodel
from strategies.method import Method
from strategies.observer import Observer
from strategies.replies import Answers, AskTally, Tally, ask, check_examples
from training.perplexity import is_perplexity, perplexity, perplexity_of
from training.testing import FEWEST_FOR_STATISTICS

VALIDATION = "validation"
"""Name of the test by which rounds are compared: a client's own level on its validation part."""

Evaluate = Callable[[nn.Module], Evaluation]
"""Tests a network on the server's data. Returns the accuracy and loss of each exit, followed by
those of the exits' ensemble where the method answers with it."""


def evaluate_submodels(method: Method, evaluate: Evaluate) -> dict[str, Any]:
    """Return the scores of every submodel and exit; worst and mean over submodels (NeFL).

    A level without clients has the reason under "lack", and is left out of worst and mean.
    """
    lacks, task = method.coverage.lacks, method.federation.task
    levels: dict[str, Any] = {}
    totals: dict[str, Any] = {"levels": levels}
    answered: list[Answered | None] = []
    for name, cut in method.tested().items():
        found = evaluate(method.submodels.network(method.submodels.of(cut), method.state))
        answered.append(found.answered)
        exits, lack = cut.level.slice.exits or (task.units,), lacks.get(cut.level.number)
        scores = [
            {"accuracy": accuracy, "loss": loss, **_perplexity(task, loss)}
            for accuracy, loss in zip(found.accuracy, found.loss, strict=True)
        ]
        ensemble = {"ensemble": scores.pop()} if method.settings.ensemble else {}
        levels[name] = {
            "accuracy": found.accuracy[-1],
            "loss": found.loss[-1],
            **_perplexity(task, found.loss[-1]),
            "exits": {str(unit): each for unit, each in zip(exits, scores, strict=True)},
            **ensemble,
            **({"lack": lack} if lack else {}),
        }
        if found.confusion is not None:
            levels[name] |= level_counts(found.confusion)
            totals["class_sizes"] = class_sizes(found.confusion)
    held = [level for level in levels.values() if "lack" not in level]
    if not held:
        return totals
    accuracies = [level["accuracy"] for level in held]
    totals |= {"worst": min(accuracies), "mean": fmean(accuracies)}
    if not lacks:
        totals |= _collaborative(method.federation.fleet, answered)
    if task.tells_words:
        perplexities = [level[perplexity_of("accuracy")] for level in held]
        totals[perplexity_of("worst")] = max(perplexities)
        totals[perplexity_of("mean")] = fmean(perplexities)
    return totals


def _collaborative(fleet: FleetConfig, answered: Sequence[Answered | None]) -> dict[str, Any]:
    """Return the accuracy of the fleet's nodes as one system, if each level is an exit of theirs.

    Accuracies under the paper's serving settings are added where they fit the fleet.
    """
    topology, known = fleet.topology, [each for each in answered if each is not None]
    if topology is None or len(known) != topology.exits or len(known) != len(answered):
        return {}
    confidence = torch.stack([each.confidence for each in known])
    right = torch.stack([each.right for each in known])
    found: dict[str, Any] = {"cis": serve(topology, confidence, right).accuracy}
    if fleet.settings:
        found["settings"] = {
            str(setting): serve(there, confidence, right).accuracy
            for setting, there in fleet.settings.items()
        }
    return found


def _perplexity(task: Task, loss: float, score: str = "accuracy") -> dict[str, float]:
    """Return a language model's perplexity, under its name beside a score."""
    return {perplexity_of(score): perplexity(loss)} if task.tells_words else {}


def client_tests(
    method: Method, due: Collection[Test], config: ConfigRecord | None, tally: Tally
) -> list[Assignment]:
    """Return the tests that clients are asked for, out of those that are due.

    An untrained level is not tested. A client without examples for a test is counted, not asked.
    """
    told, lacks = dict(config or {}), method.coverage.lacks
    tests = [
        Assignment(client, cut, told=told, what=what)
        for client in (method.roster.answering if "clients" in due else ())
        for what, cut in method.tested_by(client).items()
        if lacks.get(cut.level.number) != "untrained"
    ]
    validations = [
        Assignment(
            client,
            method.cut_of(client, method.round),
            told=told,
            what=VALIDATION,
            part="validation",
        )
        for client in (method.roster.answering if "validation" in due else ())
    ]
    able = []
    for question in tests + validations:
        if question.client.profile.of_part(question.part):
            able.append(question)
        else:
            tally.asked[question.what].without += 1
    return able


def client_scores(
    method: Method, answers: Answers, tally: Tally, known: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the clients' mean accuracy in each kind of test, over all clients and by level.

    ScaleFL's local accuracy is that of each client's own level; its global accuracy is that of the
    full model. The validation score is the mean over levels. Perplexities are averaged over
    clients' own perplexities. The result keeps the `known` scores of levels, and has each client's
    accuracy under "scores".
    """
    level_of = {number: level.number for number, level in method.coverage.own.items()}
    scores: dict[str, dict[int, float]] = {}
    for question, content in answers:
        client = question.client.number
        try:
            exits = len(question.cut.level.slice.exits or (1,))
            found = Evaluation.read(content, exits + method.settings.ensemble)
        except ProtocolError as error:
            tally.asked[question.what].refuse(client, error.reason, str(error))
        else:
            perplexities = _perplexity(method.federation.task, found.loss[-1], question.what)
            for what, score in {question.what: found.accuracy[-1], **perplexities}.items():
                scores.setdefault(what, {})[client] = score
    means: dict[str, Any] = {"levels": dict(known)}
    if scores:
        means["scores"] = {
            what: {str(client): score for client, score in by_client.items()}
            for what, by_client in scores.items()
        }
    for what, by_client in scores.items():
        means[what] = fmean(by_client.values())
        for level in sorted({level_of[client] for client in by_client}):
            own = fmean(score for client, score in by_client.items() if level_of[client] == level)
            means["levels"][str(level)] = {**means["levels"].get(str(level), {}), what: own}
    validated = {level_of[n] for n, each in method.clients.items() if each.profile.validation}
    for what in means.keys() & {VALIDATION, perplexity_of(VALIDATION)}:
        means[what] = _mean_of_levels(means["levels"], validated, what)
    return {name: value for name, value in means.items() if value is not None}


def _mean_of_levels(
    levels: Mapping[str, Any], validated: Collection[int], what: str
) -> float | None:
    """Return the mean validation score of the levels that at least one client can validate.

    It is None if one of these levels has no score. Rounds are compared by it, and a mean without
    the weakest level would be too high.
    """
    scores = [levels.get(str(level), {}).get(what) for level in sorted(validated)]
    return None if None in scores else fmean(scores)


MOST_CLASSES = 1000
"""Per-class counts are kept for at most this many classes: nobody reads them for a vocabulary."""
MOST_CONFUSED = 200
"""The whole confusion matrix is kept for at most this many classes."""


def classes_counted(task: Task) -> bool:
    """Return whether tests of this task record per-class counts."""
    return not task.tells_words and task.num_classes <= MOST_CLASSES


def level_counts(confusion: Tensor) -> dict[str, Any]:
    """Return a level's correct answers by class, and with few classes the whole matrix.

    `confusion` holds the number of examples by [class, answer].
    """
    whole = {"confusion": confusion.tolist()} if len(confusion) <= MOST_CONFUSED else {}
    return {"right": confusion.diagonal().tolist(), **whole}


def class_sizes(confusion: Tensor) -> list[int]:
    """Return the number of tested examples by class; it is the same for all levels."""
    sizes: list[int] = confusion.sum(1).tolist()
    return sizes


SHARE = 0.1
"""Share of the clients in the worst tenth, rounded up: one client of fewer than eleven."""


def worst_tenth(scores: Iterable[float], lower_is_better: bool = False) -> float | None:
    """Return the mean score of the worst tenth of the clients; None without scores."""
    ordered = sorted(scores, reverse=lower_is_better)
    return fmean(ordered[: math.ceil(SHARE * len(ordered))]) if ordered else None


def worst_tenths(line: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
    """Return the worst tenth's mean for each kind of test whose line has single clients' scores."""
    by_kind = {**line.get("scores", {}), "personal": line.get("personal", {}).get("scores")}
    found = {
        kind: worst_tenth(scores.values(), is_perplexity(kind))
        for kind, scores in by_kind.items()
        if scores
    }
    return {"worst_tenth": found} if found else {}


def with_statistics(method: Method, grid: Grid, tally: Tally, observer: Observer) -> State:
    """Return the global state with fresh statistics, if the network has static norms.

    Training with static norms (HeteroFL) keeps no statistics, so clients gather them for a test.
    Clients with too few examples for statistics are not asked.
    """
    if not _has_static_norms(method.federation.task):
        return method.state
    questions = [
        Assignment(client, cut, what="statistics")
        for client in method.roster.answering
        if client.profile.examples >= FEWEST_FOR_STATISTICS
        for cut in method.gathered_by(client)
    ]
    answers = ask(method, "query.statistics", questions, grid, tally, observer)
    return _aggregated(answers, method, tally.asked["statistics"])


@cache
def _has_static_norms(task: Task) -> bool:
    network = task.build(Slice(), device="meta")
    return any(isinstance(module, StaticBatchNorm2d) for module in network.modules())


def _aggregated(answers: Answers, method: Method, tally: AskTally) -> State:
    aggregator = method.aggregator()
    for question, content in answers:
        form, mapping = _statistics_of(method.submodels.of(question.cut))
        try:
            report, gathered = Trained.read(content), read_slice(content, form)
            check_examples(report, question.client)
            client, level = question.client.number, question.cut.level
            update = Update(
                gathered,
                mapping,
                report.examples,
                client,
                level.slice,
                level.number,
                method.state,
            )
            method.federation.max_update.check(update, method.state)
            aggregator.add(update)
        except (ProtocolError, RefusedUpdateError) as refusal:
            tally.refuse(question.client.number, refusal.reason, str(refusal))
    return aggregator.result(method.state)


def _statistics_of(submodel: Submodel) -> tuple[State, SliceMap]:
    form = {name: t for name, t in submodel.form.items() if is_running_statistic(name)}
    return form, SliceMap({name: submodel.map.regions[name] for name in form})
