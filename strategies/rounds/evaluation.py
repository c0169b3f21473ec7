"""How good the levels are: each exit on the server's test set, and models on the clients' own."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from statistics import fmean
from typing import TYPE_CHECKING, Any

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from protocol.reading import ProtocolError
from protocol.records import Evaluation, size
from strategies.levels.submodels import Submodel
from strategies.rounds.coverage import lacks
from strategies.rounds.enrolment import Client
from strategies.rounds.streaming import stream

if TYPE_CHECKING:
    from strategies.base import NestedStrategy


def evaluate_levels(strategy: NestedStrategy) -> dict[str, Any]:
    """Every level and every exit on the global test set; worst and mean over levels (NeFL).

    A level that nobody holds says so, and is left out of worst and mean.
    """
    levels: dict[str, Any] = {}
    lacking = lacks(strategy)
    for level in strategy.levels:
        found = strategy.evaluate_on_server(strategy.network(level.number))
        exits = level.slice.exits or (strategy.federation.task.units,)
        levels[str(level.number)] = {
            "accuracy": found.accuracy[-1],
            "exits": {
                str(unit): {"accuracy": accuracy, "loss": loss}
                for unit, accuracy, loss in zip(exits, found.accuracy, found.loss, strict=True)
            },
            **({"lack": lacking[level.number]} if level.number in lacking else {}),
        }
    accuracies = [level["accuracy"] for level in levels.values() if "lack" not in level]
    return {"levels": levels, "worst": min(accuracies), "mean": fmean(accuracies)}


def evaluate_clients(
    strategy: NestedStrategy, round: int, grid: Grid, metrics: Mapping[str, Any]
) -> dict[str, Any]:
    """ScaleFL's local and global accuracy: own level and full model, on each client.

    Both are means over clients: over all of them, and over those of each level. A full model that
    is untrained is not tested.
    """
    answers: dict[str, Any] = {"levels": dict(metrics.get("levels", {}))}
    whole = strategy.submodels.at(strategy.levels[-1].number)
    level_of = {number: strategy.level_of(client) for number, client in strategy.clients.items()}
    models: dict[str, Callable[[Client], Submodel]]
    models = {"local": strategy.submodel_of, "global": lambda client: whole}
    if lacks(strategy).get(whole.number) == "untrained":
        del models["global"]
    for kind, submodel_of in models.items():
        found = ask(strategy, grid, kind, "evaluate", submodel_of, round)
        scores = {}
        for number, content in sorted(found.items()):
            exits = submodel_of(strategy.clients[number]).level.slice.exits
            try:
                scores[number] = Evaluation.read(content, len(exits or (1,))).accuracy[-1]
            except ProtocolError as error:
                strategy.tally.asked[kind].refuse(number, error.reason, str(error))
        if scores:
            answers[kind] = fmean(scores.values())
        for level in sorted({level_of[number] for number in scores}):
            own = fmean(score for number, score in scores.items() if level_of[number] == level)
            known = answers["levels"].get(str(level), {})
            answers["levels"][str(level)] = {**known, kind: own}
    return answers


def ask(
    strategy: NestedStrategy,
    grid: Grid,
    what: str,
    kind: str,
    submodel_of: Callable[[Client], Submodel],
    round: int,
) -> dict[int, RecordDict]:
    """Send each client a submodel, and collect what they answer; the tally knows who did not.

    Whoever did not answer in this round is not asked: a dead node would take a deadline more. All
    the others have as much time as if they were sampled in as many rounds as that takes.
    """
    federation, tally = strategy.federation, strategy.tally.asked[what]
    numbers = [number for number in strategy.clients if number not in strategy.silent]
    tally.asked = len(numbers)
    deadline = federation.deadline * math.ceil(len(numbers) / federation.clients_per_round)

    def outgoing() -> Iterator[tuple[Client, Message]]:
        for client, message in strategy.messages(kind, numbers, submodel_of, round):
            tally.down += size(message.content)
            yield client, message

    found: dict[int, RecordDict] = {}
    for reply in stream(grid, outgoing(), federation.window, deadline):
        if reply.message is not None:
            found[reply.to.number] = reply.message.content
            tally.up += size(reply.message.content)
        elif reply.refused:
            tally.refuse(reply.to.number, reply.failure or "refused", reply.detail)
        else:
            tally.fail(reply.to.number, reply.failure or "failed", reply.detail)
    tally.answered = len(found)
    return found
