"""Measures how each exit's gradients vary from batch to batch (CIS, Appendix C)."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import islice
from statistics import median_low

import torch
import torch.nn.functional as F
from flwr.app import MetricRecord, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from data.examples import Examples
from models.families import SlicedNetwork
from protocol.reading import ProtocolError, check_names, reading, shown, whole, within
from protocol.records import METRICS, record_of
from protocol.train_settings import TrainSettings
from strategies.assignment import Assignment
from strategies.federation import FederationError
from strategies.levels.planning import Level
from strategies.levels.submodels import Cut
from strategies.method import Method
from strategies.nodes.enrolment import Client
from strategies.replies import AskTally, Tally, ask
from training.devices import Placement, resident
from training.fitting import chance_from

FEWEST_BATCHES = 2
"""Batches that a variance needs."""


def gradient_variances(
    net: SlicedNetwork,
    data: Examples,
    settings: TrainSettings,
    exits: int,
    seed: int,
    most: int | None = None,
) -> list[float]:
    """Return for each exit the mean variance of its gradient's entries over batches.

    The gradient is that of all weights up to the exit, with its head. It is measured over an epoch
    of whole batches, or over `most` batches; the network stays unchanged.
    """
    batches = len(data) // settings.batch_size
    batches = batches if most is None else min(batches, most)
    if batches < FEWEST_BATCHES:
        raise ValueError(
            f"{len(data)} examples in batches of {settings.batch_size}: expected {FEWEST_BATCHES} "
            "batches or more to tell how much gradients vary"
        )
    place = Placement.of(settings, net)
    net = deepcopy(net).to(place.device).train()
    here = resident(data, place.device)

    def drawn() -> Iterable[tuple[Tensor, Tensor]]:
        order = torch.Generator().manual_seed(seed)
        return islice(here.batches(settings.batch_size, shuffle=True, generator=order), batches)

    found = []
    for number in range(exits):
        with chance_from(seed, place.device):  # for layers such as dropout
            found.append(_variance(net, drawn(), number))
    return found


def _variance(net: SlicedNetwork, batches: Iterable[tuple[Tensor, Tensor]], number: int) -> float:
    """Return the mean over entries of their variance."""
    # Welford's sums, a batch at a time: gradients of one batch only are in memory.
    count, means, squares = 0, dict[str, Tensor](), dict[str, Tensor]()
    for inputs, labels in batches:
        count += 1
        net.zero_grad()
        logits = next(islice(net.walk(inputs), number, None))  # nothing beyond is computed
        F.cross_entropy(logits, labels.flatten()).backward()  # type: ignore[no-untyped-call]
        for name, parameter in net.named_parameters():
            if parameter.grad is not None:
                gradient = parameter.grad
                mean = means.setdefault(name, torch.zeros_like(gradient))
                off = gradient - mean
                mean += off / count
                squares.setdefault(name, torch.zeros_like(gradient)).add_(off * (gradient - mean))
    total = sum(float(each.double().sum()) for each in squares.values())
    return total / (count - 1) / sum(each.numel() for each in squares.values())


WHAT = "variances"


def measured_variances(method: Method, grid: Grid, batches: int) -> tuple[list[float], AskTally]:
    """Return each exit's variance, as the median of the clients', so that no single one decides.

    The second value counts the clients that were asked, and those that did not answer.
    """
    questions = [
        Assignment(
            client, Cut(_with_exits_below(method, client)), told={"batches": batches}, what=WHAT
        )
        for client in method.clients.values()
    ]
    tally = Tally(0)
    answers = ask(method, "query.method", questions, grid, tally)
    counts = tally.asked[WHAT]
    found: list[list[float]] = [[] for _ in method.levels]
    for question, content in answers:
        try:
            measured = Variances.read(content, question.cut.level.number)
        except ProtocolError as error:
            counts.refuse(question.client.number, error.reason, str(error))
            continue
        for exits, variance in zip(found, measured.exits, strict=False):
            exits.append(variance)
    for number, each in enumerate(found, 1):
        if not each:
            why = "; ".join(f"client {who}: {what}" for who, what in counts.problems.items())
            raise FederationError(
                f"no client has measured how much the gradients of exit {number} vary, which takes "
                f"two batches of examples ({why[:300]}): lower train.batch_size, or choose other "
                "weights than balanced"
            )
    return [median_low(each) for each in found], counts


def _with_exits_below(method: Method, client: Client) -> Level:
    """Return a client's level with all exits on its way."""
    own = method.level_of(client)
    exits = tuple(each.split.depth for each in method.levels[: own.number])
    return replace(own, slice=replace(own.slice, exits=exits))


@dataclass(frozen=True)
class Variances:
    """A client's gradient variances, the first exit's first, and their number of examples."""

    examples: int
    exits: tuple[float, ...]

    def record(self) -> MetricRecord:
        return MetricRecord({"num-examples": self.examples, "variances": list(self.exits)})

    @classmethod
    def read(cls, content: RecordDict, exits: int) -> Variances:
        """Return a client's variances for this many exits, or raise ProtocolError."""
        with reading("a report"):
            check_names(content, (METRICS,), "the reply", "names")
            metrics = record_of(content, METRICS, MetricRecord)
            check_names(metrics, ("num-examples", "variances"), METRICS)
            found = metrics["variances"]
            if not isinstance(found, list) or len(found) != exits:
                raise ProtocolError(f"{shown(found)} for {exits} exits: expected one of each")
            return cls(
                whole(metrics["num-examples"], "num-examples", 1),
                tuple(within(each, "a variance", LEAST, MOST) for each in found),
            )


LEAST, MOST = 1e-30, 1e30
"""Range of a variance that a client may report: weights are proportional to its inverse."""
