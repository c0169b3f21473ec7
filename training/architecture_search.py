"""Which of many architectures suits a client's data: all are scored, or an evolution of some."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from data.examples import Examples
from models.candidates import Candidates
from models.slicing import Slice
from models.task import Task
from protocol.train_settings import DeviceKind
from training.devices import choose_device, resident
from training.zico import zico_score

Score = Callable[[Slice], float]
Affords = Callable[[Slice], bool]

DRAWS_A_TRIAL = 20
"""Candidates that may be drawn for each that is scored: one may be known, or too large."""


def best_of(
    candidates: Candidates,
    score: Score,
    affords: Affords,
    trials: int,
    population: int,
    chance: np.random.Generator,
) -> Slice:
    """Return the candidate of the highest score, of those that can be afforded.

    Where there are no more than `trials`, all are scored. Else that many are: the first ones are
    drawn, each later one is one of the `population` best so far with one number changed. Whoever
    affords none gets the smallest.
    """
    scores: dict[Slice, float] = {}

    def judge(candidate: Slice) -> None:
        if candidate not in scores and affords(candidate):
            scores[candidate] = score(candidate)

    if len(candidates) <= trials:
        for each in candidates:
            judge(each)
    else:
        judge(candidates.smallest)
        judge(candidates.largest)
        for _ in range(DRAWS_A_TRIAL * trials):
            if len(scores) >= trials:
                break
            best = sorted(scores, key=lambda each: -scores[each])[:population]
            if len(best) < population:
                judge(candidates.drawn(chance))
            else:
                judge(candidates.changed(best[chance.integers(len(best))], chance))
    return max(scores, key=lambda each: scores[each], default=candidates.smallest)


def zico_scorer(
    task: Task, data: Examples, batches: int, batch_size: int, seed: int, device: DeviceKind
) -> Score | None:
    """Return ZiCo's score of an architecture on a client's data; None if there is too little of it.

    All architectures start from the same seed and see the same batches. A small data set is parted
    into as many smaller batches, but none of less than two examples, which batch norm needs. Of
    running texts `batch_size` counts the words.
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
