"""Ensemble distillation (FedDF): a student learns its teachers' mean answer, without labels.

Lin, Kong, Stich, Jaggi: "Ensemble Distillation for Robust Model Fusion in Federated Learning",
NeurIPS 2020. The teachers' answers to each example are computed once, one teacher at a time, and
kept for every step. Evaluating all teachers on each batch would give the same: in test mode an
answer depends on the example alone.

Examples have their numbers in place of labels (`data/unlabelled.py`), so no label can be used.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from data.examples import Examples
from models.families import SlicedNetwork
from protocol.train_settings import TrainSettings
from training.devices import Placement, resident
from training.fitting import chance_from
from training.testing import LARGEST_BATCH, evaluate, with_statistics_after_training

Told = Callable[[int], None]
"""Receives the number of steps, or batches, that are done."""

REPORTED = 10
"""Steps over which the loss at the start and at the end is averaged."""


@dataclass(frozen=True)
class DistillationSettings:
    """Settings of distillation; the defaults are the paper's."""

    steps: int = 10_000
    batch_size: int = 64
    lr: float = 1e-3
    """Learning rate of Adam; it falls to 0 along a cosine."""
    clip: float = 5.0
    """Largest norm of a batch's gradient; 0 does not clip."""
    temperature: float = 1.0
    check_every: int = 100
    """Steps between tests on validation examples, where there are any."""
    patience: int = 1_000
    """Steps without a better test after which a student stops."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "check_every", "patience"):
            least = 2 if name == "batch_size" else 1  # batch norm has no variance of one example
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}: expected at least {least}")
        for name in ("lr", "temperature"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}: expected a number above 0")
        if not 0 <= self.clip < math.inf:
            raise ValueError(f"clip is {self.clip}: expected a finite number, 0 or more")


@dataclass(frozen=True)
class Targets:
    """The targets of a student for each example."""

    probabilities: Tensor
    """[examples, classes]."""
    least: Tensor
    """[examples]: sum p log p, the negative entropy, which makes a perfect student's loss 0."""

    def loss(self, logits: Tensor, rows: Tensor, temperature: float) -> Tensor:
        """Return KL(targets || softmax(logits / T)) as the batch's mean, without a factor T^2."""
        answers = F.log_softmax(logits / temperature, dim=1)
        return (self.least[rows] - (self.probabilities[rows] * answers).sum(1)).mean()

    def to(self, device: torch.device) -> Targets:
        return Targets(self.probabilities.to(device), self.least.to(device))


class Ensemble:
    """Sums teachers' logits one after the other; the sum depends on their order."""

    def __init__(self, temperature: float) -> None:
        self.temperature = temperature
        self.teachers = 0
        self._logits = torch.zeros((), dtype=torch.float64)

    def add(self, logits: Tensor) -> None:
        """Add a teacher's logits for each example."""
        self._logits = self._logits + logits.double().cpu()
        self.teachers += 1

    def targets(self) -> Targets:
        """Return the softmax of the mean logits of the teachers, of which there is at least one."""
        mean = F.softmax(self._logits / self.teachers / self.temperature, dim=1)
        least = torch.special.xlogy(mean, mean).sum(1)
        return Targets(mean.float(), least.float())


@dataclass(frozen=True)
class DistillationReport:
    """The result of distilling one student."""

    steps: int
    loss_start: float
    loss_end: float
    """Mean losses over the first and the last steps, each before its own update."""
    best_step: int | None = None
    """Step after which the student was best on the validation examples; 0 is its start."""
    validation: float | None = None
    """Accuracy on the validation examples after that step."""


def answers(
    network: SlicedNetwork, data: Examples, train: TrainSettings, told: Told = lambda done: None
) -> Tensor:
    """Return the logits of a network's last exit for each example, in test mode.

    Batch norms that keep no statistics in training get those of these examples: with statistics of
    a batch, an answer would depend on the batch's other examples.
    """
    network = with_statistics_after_training(network, data, train, "own")
    place = Placement.of(train, network)
    network.to(place.device).eval()
    found = []
    with torch.no_grad():
        for inputs, _ in resident(data, place.device).batches(LARGEST_BATCH):
            found.append(place.logits(network, inputs)[-1])
            told(len(found))
    return torch.cat(found)


def accuracy(network: SlicedNetwork, data: Examples, train: TrainSettings) -> float:
    """Return a network's accuracy on labelled examples."""
    tested = with_statistics_after_training(network, data, train, "own")
    return evaluate(tested, data, train)[-1].accuracy


def distil(
    student: SlicedNetwork,
    data: Examples,
    targets: Targets,
    settings: DistillationSettings,
    train: TrainSettings,
    seed: int,
    validation: Examples | None = None,
    told: Told = lambda done: None,
) -> DistillationReport:
    """Train the student in place; on CPU its weights are a function of the arguments alone.

    With labelled validation examples it stops when it gets no better, and ends with its best
    weights, which may be the first ones. Without them it takes all steps, and ends with the last
    weights.
    """
    # Without a gradient scaler, fp16 gradients would underflow.
    train = replace(train, precision="fp32" if train.precision == "fp16" else train.precision)
    place = Placement.of(train, student)
    student.to(place.device)
    here, targets = resident(data, place.device), targets.to(place.device)
    parameters = list(student.parameters())
    optimiser = torch.optim.Adam(parameters, settings.lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, settings.steps)
    best = _Best(student, validation, train) if validation is not None else None
    losses: list[Tensor] = []
    with chance_from(seed, place.device):
        order = torch.Generator().manual_seed(seed)
        for inputs, rows in islice(_batches(here, settings.batch_size, order), settings.steps):
            student.train()
            logits = place.logits(student, inputs)[-1]
            loss = targets.loss(logits, rows, settings.temperature)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            if settings.clip:
                nn.utils.clip_grad_norm_(parameters, settings.clip)
            optimiser.step()
            schedule.step()
            losses.append(loss.detach())
            told(len(losses))
            last = len(losses) == settings.steps
            if best is not None and (last or len(losses) % settings.check_every == 0):
                best.consider(len(losses))
                if len(losses) - best.step >= settings.patience:
                    break
    start, end = (
        float(torch.stack(some).mean()) for some in (losses[:REPORTED], losses[-REPORTED:])
    )
    report = DistillationReport(len(losses), start, end)
    if best is None:
        return report
    best.restore()
    return replace(report, best_step=best.step, validation=best.accuracy)


class _Best:
    """The student's weights at its best validation accuracy; the first of equals."""

    def __init__(self, student: SlicedNetwork, data: Examples, train: TrainSettings) -> None:
        self._student, self._data, self._train = student, data, train
        self.step, self.accuracy = 0, accuracy(student, data, train)
        self._state = copy.deepcopy(student.state_dict())

    def consider(self, step: int) -> None:
        found = accuracy(self._student, self._data, self._train)
        if found > self.accuracy:
            self.step, self.accuracy = step, found
            self._state = copy.deepcopy(self._student.state_dict())

    def restore(self) -> None:
        self._student.load_state_dict(self._state)


def _batches(
    data: Examples, batch_size: int, order: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield inputs and their numbers, epoch after epoch, without end.

    A single last example is left out of its epoch: batch norm cannot take its variance.
    """
    if len(data) < 2:
        raise ValueError(f"{len(data)} examples are too few to distil with: expected at least 2")
    while True:
        for inputs, rows in data.batches(batch_size, shuffle=True, generator=order):
            if len(inputs) > 1:
                yield inputs, rows
