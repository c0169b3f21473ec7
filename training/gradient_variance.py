"""How much the gradients of each exit's loss differ from batch to batch (CIS, Appendix C)."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from itertools import islice

import torch
import torch.nn.functional as F
from torch import Tensor

from data.examples import Examples
from models.families import SlicedNetwork
from protocol.train_settings import TrainSettings
from training.devices import resident
from training.fitting import chance_from
from training.placement import Placement

FEWEST_BATCHES = 2
"""That a variance takes."""


def gradient_variances(
    net: SlicedNetwork,
    data: Examples,
    settings: TrainSettings,
    exits: int,
    seed: int,
    most: int | None = None,
) -> list[float]:
    """Return for each exit the variance of its gradient's entries over batches, on average.

    It is of the gradient by all weights on the way to that exit, its head among them. An epoch of
    whole batches counts, or so many of them at most; the network is as before.
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
        with chance_from(seed, place.device):  # of layers such as dropout
            found.append(_variance(net, drawn(), number))
    return found


def _variance(net: SlicedNetwork, batches: Iterable[tuple[Tensor, Tensor]], number: int) -> float:
    """Return the mean over entries of their variance: Welford's sums, a batch at a time."""
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
