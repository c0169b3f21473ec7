"""How good the submodels are: each exit on the server's test set, and models on clients' own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from statistics import fmean
from typing import Any

import torch
from flwr.app import ConfigRecord
from torch import nn

from inference.collaborative import serve
from models.task import Task
from protocol.reading import ProtocolError
from protocol.reports import Answered, Evaluation
from strategies.federation import FleetConfig, Test
from strategies.method import Method
from strategies.rounds.classes import class_sizes, level_counts
from strategies.rounds.questions import Answers, Question
from strategies.rounds.tally import Tally
from training.perplexity import perplexity, perplexity_of

VALIDATION = "validation"
"""The test by which rounds are compared: a client's own level on its validation part."""

Evaluate = Callable[[nn.Module], Evaluation]
"""Tests a network on the server's data: the accuracy and the loss of each exit, and after these of
their ensemble, where the method answers with it."""


def evaluate_submodels(method: Method, evaluate: Evaluate) -> dict[str, Any]:
    """Return every submodel's and every exit's scores; worst and mean over submodels (NeFL).

    A level that nobody holds says so, and is left out of worst and mean.
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
    """Return the accuracy of the fleet's nodes together, where each level is an exit of theirs.

    Beside it are those under the serving settings of the paper that fit it.
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
    """Return a language model's perplexity, by the name that it has beside a score."""
    return {perplexity_of(score): perplexity(loss)} if task.tells_words else {}


def client_tests(
    method: Method, due: Collection[Test], config: ConfigRecord | None, tally: Tally
) -> list[Question]:
    """Return what the clients are asked to test, of what is due; an untrained level is not.

    A client without examples in that part is counted in its place.
    """
    told, lacks = dict(config or {}), method.coverage.lacks
    tests = [
        Question(client, cut, told=told, what=what)
        for client in (method.roster.answering if "clients" in due else ())
        for what, cut in method.tested_by(client).items()
        if lacks.get(cut.level.number) != "untrained"
    ]
    validations = [
        Question(client, cut, told=told, what=VALIDATION, part="validation")
        for client in (method.roster.answering if "validation" in due else ())
        for cut in [method.cut_of(client, method.round)]
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
    """Return the clients' mean accuracy for each kind of test, over all and over each level's own.

    So are perplexities, each of which is of one client's loss.

    ScaleFL's local accuracy is of each client's own level, its global one of the full model; the
    validation score is the mean of the levels' own. What is `known` of the levels is kept beside,
    and every client's own accuracy under "scores".
    """
    level_of = {number: method.level_of(each).number for number, each in method.clients.items()}
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
    """Return the mean validation score of the levels that some client can validate.

    It is None if one of these has no score. Rounds are compared by it: one without its weakest
    level would look better than it is.
    """
    scores = [levels.get(str(level), {}).get(what) for level in sorted(validated)]
    return None if None in scores else fmean(scores)
