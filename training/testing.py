"""Tests each exit on given data, and gathers the statistics that static batch norm needs for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from data.examples import Examples
from models.families import SlicedNetwork
from models.frozen import freeze, needs_statistics
from models.layers import StaticBatchNorm2d
from models.slicing import is_running_statistic
from protocol.reports import Answered
from protocol.train_settings import StatisticsKind, TrainSettings
from training.devices import Placement, resident

LARGEST_BATCH = 256
"""Most answers in a batch: an example of a language model has one for each of its words."""

FEW_CLASSES = 1000

FEWEST_FOR_STATISTICS = 2
"""Examples: one alone has no variance."""

Answers = Callable[[list[Tensor]], list[Tensor]]
"""Maps the logits of each exit to the answers that a test counts."""


@dataclass(frozen=True)
class ExitReport:
    """The quality of one exit."""

    loss: float
    accuracy: float
    examples: int
    answered: Answered | None = field(default=None, compare=False, repr=False)
    """The exit's answers one by one, if requested."""
    confusion: Tensor | None = field(default=None, compare=False, repr=False)
    """[classes, classes]: number of examples by class and answer, if requested."""


def evaluate(
    net: SlicedNetwork,
    data: Examples,
    settings: TrainSettings,
    ensemble: bool = False,
    answers_of: Answers = list,
    one_by_one: bool = False,
    by_class: bool = False,
) -> list[ExitReport]:
    """Return a report for each exit, in order; an empty list without examples.

    Loss and accuracy are means over the answers. `ensemble` adds a report on the mean of the exits'
    logits. `answers_of` maps the logits to those that are counted. The answers `one_by_one` come in
    an order that depends on the number of examples alone. `by_class` adds the confusion matrix to
    the last report, which is that of the network's own answer.
    """
    place = Placement.of(settings, net)
    net.to(place.device).eval()
    losses, hits, sure, told = [], [], [], []
    with torch.inference_mode():
        for inputs, labels in evaluation_batches(resident(data, place.device)):
            logits = answers_of(place.logits(net, inputs))
            answers = torch.stack(logits)  # [exits, answers, classes]
            if ensemble:
                answers = torch.cat((answers, answers.mean(0, keepdim=True)))
            repeated = labels.expand(len(answers), -1)
            losses.append(_losses(answers, repeated).sum(1))
            hits.append(answers.argmax(2) == repeated)
            if one_by_one:
                sure.append(answers.softmax(2).amax(2))
            if by_class:
                # One number for each pair of a label and an answer.
                told.append(labels * answers.shape[2] + answers[-1].argmax(1))
    if not losses:
        return []
    loss = torch.stack(losses).cpu().double().sum(0) / data.labels.numel()
    right = torch.cat(hits, 1).cpu()
    accuracy = right.sum(1).double() / data.labels.numel()
    answered: list[Answered | None] = [None] * len(right)
    if one_by_one:
        answered = list(map(Answered, torch.cat(sure, 1).cpu(), right))
    confusions: list[Tensor | None] = [None] * len(right)
    if by_class:
        confusions[-1] = _counted(torch.cat(told).cpu(), answers.shape[2])
    found = zip(loss.tolist(), accuracy.tolist(), answered, confusions, strict=True)
    return [ExitReport(each, share, len(data), own, counts) for each, share, own, counts in found]


def _counted(pairs: Tensor, classes: int) -> Tensor:
    """Return the confusion matrix, [classes, classes], from the pairs of label and answer."""
    return torch.bincount(pairs, minlength=classes**2).view(classes, classes)


def _losses(answers: Tensor, labels: Tensor) -> Tensor:
    """Return the cross-entropy of each answer in [exits, answers, classes].

    For a vocabulary, rows of classes take a third of the time of columns. Few classes keep the
    column form: the other one would change the last bits.
    """
    if answers.shape[2] <= FEW_CLASSES:
        return F.cross_entropy(answers.transpose(1, 2), labels, reduction="none")
    rows = F.cross_entropy(answers.flatten(0, 1), labels.flatten(), reduction="none")
    return rows.view_as(labels)


def with_own_statistics(
    net: SlicedNetwork, data: Examples, settings: TrainSettings
) -> SlicedNetwork:
    """Return the network with batch norm's statistics fixed over this data, where it has none.

    A client tests on few examples, whose own statistics would differ from those of all inputs.
    """
    if not needs_statistics(net) or not len(data):
        return net
    return _frozen_over(net, data, settings)


def with_statistics_after_training(
    net: SlicedNetwork, data: Examples, settings: TrainSettings, kind: StatisticsKind
) -> SlicedNetwork:
    """Return a trained network with the statistics that its batch norms lack.

    The statistics that a static norm was sent with belong to the network before its training.
    """
    if any(isinstance(module, StaticBatchNorm2d) for module in net.modules()):
        return _frozen_over(net, data, settings)
    return with_own_statistics(net, data, settings) if kind == "own" else net


def gather_statistics(
    net: SlicedNetwork, data: Examples, settings: TrainSettings
) -> tuple[dict[str, Tensor], int]:
    """Return this client's statistics for each static batch norm, and its number of examples.

    They are gathered in test mode, in which they will be used: without HeteroFL's scaler.
    """
    if not any(isinstance(module, StaticBatchNorm2d) for module in net.modules()):
        raise ValueError("the network has no static batch norm: build it with norm='bn-static'")
    if len(data) < FEWEST_FOR_STATISTICS:
        raise ValueError(
            f"{len(data)} examples are too few for statistics: expected at least "
            f"{FEWEST_FOR_STATISTICS}"
        )
    buffers = _frozen_over(net, data, settings).state_dict()
    statistics = {name: t.cpu() for name, t in buffers.items() if is_running_statistic(name)}
    return statistics, len(data)


def _frozen_over(net: SlicedNetwork, data: Examples, settings: TrainSettings) -> SlicedNetwork:
    place = Placement.of(settings, net)
    batches = evaluation_batches(resident(data, place.device))
    return freeze(net.to(place.device), (inputs for inputs, _ in batches))


def evaluation_batches(data: Examples) -> Iterator[tuple[Tensor, Tensor]]:
    """Return the data in a fixed order, in batches of a fixed size, with no tiny batch.

    Batch norm without running statistics judges an image by its batch, at test time too. The order
    is mixed, because files sorted by class would give batches of one class. Order and size depend
    on the number of examples alone, so all tests on the same data have the same result.
    """
    order = torch.Generator().manual_seed(0)
    return data.batches(_batch_size(data), shuffle=True, generator=order)


def largest_batch(answers: int) -> int:
    """Return the largest number of examples in a batch, for a number of answers per example."""
    return max(1, LARGEST_BATCH // answers)


def _batch_size(data: Examples) -> int:
    """Return the batch size, above half of the largest, whose last batch is fullest."""
    examples = max(1, len(data))
    largest = largest_batch(max(1, data.labels.numel() // examples))
    if examples <= largest:
        return examples
    sizes = range(largest, largest // 2, -1)
    return min(sizes, key=lambda size: -examples % size)
