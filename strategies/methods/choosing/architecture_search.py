"""Searches the architecture that suits a client's data, by score: exhaustive, or by evolution."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from data.examples import Examples
from models.candidates import Candidates
from models.families import SlicedNetwork
from models.slicing import Slice
from models.task import Task
from protocol.train_settings import DeviceKind
from training.devices import choose_device, resident

Score = Callable[[Slice], float]
Affords = Callable[[Slice], bool]

DRAWS_A_TRIAL = 20
"""Draws allowed per scored candidate: a drawn one may be known already, or too large."""

POPULATION = 8
"""Scored candidates, the best so far, from which further ones are made."""


def best_of(
    candidates: Candidates,
    score: Score,
    affords: Affords,
    trials: int,
    chance: np.random.Generator,
) -> Slice:
    """Return the candidate with the highest score among those the client affords.

    Up to `trials` candidates are all scored. With more, `trials` of them are scored: the first are
    drawn at random, and each later one changes one number of one of the POPULATION best so far. A
    client that affords none gets the smallest.
    """
    scores: dict[Slice, float] = {}

    def judge(candidate: Slice) -> None:
        if candidate not in scores and affords(candidate):
            scores[candidate] = score(candidate)

    if len(candidates) <= trials:
        for each in candidates:
            judge(each)
    else:
        # Both ends of the range are always among the first.
        judge(candidates.smallest)
        judge(candidates.largest)
        for _ in range(DRAWS_A_TRIAL * trials):
            if len(scores) >= trials:
                break
            best = sorted(scores, key=lambda each: -scores[each])[:POPULATION]
            if len(best) < POPULATION:
                judge(candidates.drawn(chance))
            else:
                judge(candidates.changed(best[chance.integers(len(best))], chance))
    return max(scores, key=lambda each: scores[each], default=candidates.smallest)


def zico_scorer(
    task: Task, data: Examples, batches: int, batch_size: int, seed: int, device: DeviceKind
) -> Score | None:
    """Return a function that scores architectures by ZiCo; None if the client has too little data.

    All architectures start from the same seed and see the same batches. A small data set is split
    into as many smaller batches, of two examples at least, which batch norm needs. For running
    texts `batch_size` counts words.
    """
    size = min(max(2, batch_size // task.answers), len(data) // batches)
    if size < 2:
        return None
    place = choose_device(device)
    order = torch.Generator().manual_seed(seed)
    served = resident(data, place).batches(size, shuffle=True, generator=order)
    seen = [(x.contiguous(), y) for x, y in (next(served) for _ in range(batches))]

    def score(slice: Slice) -> float:
        with torch.random.fork_rng(devices=[place] if place.type == "cuda" else []):
            torch.manual_seed(seed)
            return zico_score(task.build(slice).to(place), seen)

    return score


Batch = tuple[Tensor, Tensor]


def zico_score(net: SlicedNetwork, batches: Iterable[Batch]) -> float:
    """Return the ZiCo score of a network's current weights, higher is better; 0 for one batch."""
    weights = [
        parameter
        for module in net.modules()
        if not isinstance(module, nn.Embedding)
        for name, parameter in module.named_parameters(recurse=False)
        if name.endswith("weight") and parameter.ndim > 1  # fused q, k, v too; no norms
    ]
    net.train()
    gradients = [_gradients(net, weights, *batch) for batch in batches]
    net.zero_grad(set_to_none=True)
    return score_of(list(zip(*gradients, strict=True)))


def score_of(layers: Sequence[Sequence[Tensor]]) -> float:
    """Return the score of the layers' gradients, which have one tensor per batch.

    Weights whose gradient is the same in all batches are left out; a layer without others adds 0.
    """
    return sum(map(_layer_score, layers))


def _layer_score(gradients: Sequence[Tensor]) -> float:
    by_batch = torch.stack([gradient.flatten() for gradient in gradients]).double()
    deviation = by_batch.std(0, correction=0)
    varies = deviation > 0
    total = float((by_batch.abs().mean(0)[varies] / deviation[varies]).sum())
    return math.log(total) if total > 0 else 0.0


def _gradients(
    net: SlicedNetwork, weights: Sequence[Tensor], inputs: Tensor, labels: Tensor
) -> list[Tensor]:
    loss = F.cross_entropy(net(inputs)[-1], labels)
    found = torch.autograd.grad(loss, weights, allow_unused=True)
    return [
        torch.zeros_like(weight) if gradient is None else gradient
        for weight, gradient in zip(weights, found, strict=True)
    ]
