"""Local training: epochs, or steps, of SGD or AdamW on a client's own data."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, count, islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.sgd import sgd

from data.examples import Examples
from models.families import SlicedNetwork
from protocol.train_settings import TrainSettings
from training.devices import PlacedNetwork, Placement, resident

Loss = Callable[[PlacedNetwork, Tensor, Tensor], Tensor]
"""Loss of a network on a batch of inputs and their labels."""


@dataclass(frozen=True)
class FitReport:
    """The result of local training."""

    loss: float
    """Mean loss over all labels of all epochs, each before its own step."""
    examples: int
    """Number of the client's training examples: its aggregation weight."""
    batches: int
    seconds: float


def fit(
    net: SlicedNetwork,
    data: Examples,
    loss_of: Loss,
    settings: TrainSettings,
    round: int,
    seed: int,
    moved: Sequence[Tensor] | None = None,
) -> FitReport:
    """Train the network in place; on CPU its weights are a function of the arguments alone.

    Steps move the network's parameters, or the tensors of `moved`, where they have gradients.
    """
    if len(data) == 0:
        raise ValueError("this client has no training examples")
    started = time.perf_counter()
    place = Placement.of(settings, net)
    net.to(place.device).train()
    placed = PlacedNetwork(net, place, torch.compile(net) if settings.compile else net)
    parameters = list(net.parameters()) if moved is None else moved
    rate = learning_rate(settings, round)
    optimiser = _optimiser(parameters, settings, rate)
    # Warm-up counts the steps of past rounds as if the client had trained in each of them.
    before = (round - 1) * steps_of(len(data), settings)
    scaler = torch.amp.GradScaler(place.device.type, enabled=place.precision == torch.float16)
    here = resident(data, place.device)
    order = torch.Generator().manual_seed(seed)
    total, seen, steps = torch.zeros((), device=place.device), 0, 0
    with chance_from(seed, place.device):
        for inputs, labels in _batches(here, settings, order):
            if settings.warmup:
                _set_rate(optimiser, rate * warmed_up(settings, before + steps + 1))
            loss = loss_of(placed, inputs, labels)
            scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            if settings.clip:
                scaler.unscale_(optimiser)  # clip the true gradients, not the scaled ones
                nn.utils.clip_grad_norm_(parameters, settings.clip)
            scaler.step(optimiser)
            scaler.update()
            optimiser.zero_grad()
            total += loss.detach() * len(labels)  # no wait: the sum stays on the device
            seen, steps = seen + len(labels), steps + 1
    mean_loss = float(total) / seen
    return FitReport(mean_loss, len(data), steps, time.perf_counter() - started)


def _optimiser(parameters: Sequence[Tensor], settings: TrainSettings, rate: float) -> Any:
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(parameters, rate, weight_decay=settings.weight_decay)
    return SGD(parameters, rate, settings)


def _set_rate(optimiser: Any, rate: float) -> None:
    """Set the learning rate of an optimiser's next steps."""
    for group in optimiser.param_groups:
        group["lr"] = rate


def steps_of(examples: int, settings: TrainSettings) -> int:
    """Return the steps in a round of a client with this many examples."""
    return settings.steps or settings.epochs * _steps_of_an_epoch(examples, settings)


def passed(examples: int, settings: TrainSettings) -> int:
    """Return the number of examples that pass through the network in a client's round."""
    if settings.steps is None:
        return examples * settings.epochs
    epochs, more = divmod(settings.steps, _steps_of_an_epoch(examples, settings))
    return examples * epochs + min(examples, more * settings.batch_size)


def _steps_of_an_epoch(examples: int, settings: TrainSettings) -> int:
    """Return the steps of an epoch, which leaves out a single last example."""
    size = settings.batch_size
    return max(1, math.ceil(examples / size) - (size > 1 and examples % size == 1))


def _batches(
    data: Examples, settings: TrainSettings, order: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches of a round: for a number of epochs, or for a number of steps."""
    epochs = range(settings.epochs) if settings.steps is None else count()
    batches = chain.from_iterable(_epoch(data, settings, order) for _ in epochs)
    return islice(batches, settings.steps)


def _epoch(
    data: Examples, settings: TrainSettings, order: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield an epoch without batches of one example, whose variance batch norm cannot take.

    A single last example is left out, another one each epoch. If all batches would have one
    example, each is served twice: the mean loss and the batch's statistics are the same.
    """
    only_lone = len(data) == 1 or settings.batch_size == 1
    for inputs, labels in data.batches(
        settings.batch_size, shuffle=True, augment=settings.augment, generator=order
    ):
        if len(inputs) > 1:
            yield inputs, labels
        elif only_lone:
            yield torch.cat((inputs, inputs)), labels.repeat(2)


@contextmanager
def chance_from(seed: int, device: torch.device) -> Iterator[None]:
    """Draw from the seed in layers such as dropout, and keep the process's own random state."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


class SGD:
    """`torch.optim.SGD`, with equal results, on torch's own functional form.

    The first torch optimiser of a process imports the compiler, which took 2.8 s here: more than
    the rest of torch, and a deployed client is a new process for every message.
    """

    def __init__(self, parameters: Iterable[Tensor], lr: float, settings: TrainSettings):
        """Take the tensors to move; tensors that share memory share their momentum, entry by entry.

        Of such tensors, a step moves only those that have a gradient.
        """
        self.parameters = list(parameters)
        # torch's GradScaler reads this.
        self.param_groups: list[dict[str, Any]] = [{"params": self.parameters, "lr": lr}]
        self.settings = settings
        shared = _shared_momenta(self.parameters) if settings.momentum else {}
        self.momenta: dict[Tensor, Tensor | None] = shared

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Move each parameter that has a gradient."""
        gradients = {p: p.grad for p in self.parameters if p.grad is not None}
        moved = list(gradients)
        momenta = [self.momenta.get(parameter) for parameter in moved]
        sgd(
            list[Tensor](moved),
            list(gradients.values()),
            momenta,
            lr=self.param_groups[0]["lr"],
            momentum=self.settings.momentum,
            weight_decay=self.settings.weight_decay,
            nesterov=self.settings.nesterov,
            dampening=0,
            maximize=False,
            foreach=True,
        )
        self.momenta.update(zip(moved, momenta, strict=True))


def _shared_momenta(parameters: Sequence[Tensor]) -> dict[Tensor, Tensor | None]:
    """Return views of the same zeros for tensors that are views of the same memory."""
    users: dict[int, list[Tensor]] = {}
    for parameter in parameters:
        users.setdefault(parameter.untyped_storage().data_ptr(), []).append(parameter)
    momenta: dict[Tensor, Tensor | None] = {}
    for sharing in users.values():
        if len(sharing) > 1:
            entries = sharing[0].untyped_storage().nbytes() // sharing[0].element_size()
            zeros = sharing[0].new_zeros(entries)
            for each in sharing:
                place = (each.size(), each.stride(), each.storage_offset())
                momenta[each] = zeros.as_strided(*place)
    return momenta


def learning_rate(settings: TrainSettings, round: int) -> float:
    """Return the learning rate of a round, after any warm-up; rounds are counted from 1."""
    if round < 1:
        raise ValueError(f"round is {round}: expected at least 1")
    if settings.schedule == "step":
        passed = sum(milestone <= round for milestone in settings.milestones)
        return settings.lr * float(settings.gamma**passed)
    if settings.schedule == "cosine":
        # From lr in the first round towards 0 after the last one, which so still has a rate above
        # 0.
        progress = min(round - 1, settings.rounds) / settings.rounds
        return settings.lr * (1 + math.cos(math.pi * progress)) / 2
    return settings.lr


def warmed_up(settings: TrainSettings, step: int) -> float:
    """Return the warm-up factor of a client's step; steps count from 1 through all rounds.

    It rises linearly to 1 at the step that ends the warm-up.
    """
    return min(1.0, step / settings.warmup) if settings.warmup else 1.0
