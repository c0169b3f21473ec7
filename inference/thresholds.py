"""Thresholds that keep an average budget: MSDNet's scheme (Huang et al., 2018, Section 4.2).

The shares of samples that leave at each exit are geometric: exit k gets a share proportional to
r^k, with the r whose average cost is the budget. An exit's threshold is then the lowest confidence
among the validation samples that have to leave there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from inference.anytime import anytime
from models.families import SlicedNetwork


class BudgetError(ValueError):
    """A budget that the network cannot keep."""


def scores(net: SlicedNetwork, batches: Iterable[Tensor]) -> Tensor:
    """Return each exit's confidence in each sample, [exits, n], on the CPU."""
    found = [
        torch.stack([answers.confidence for answers in anytime(net, batch)]).cpu()
        for batch in batches
    ]
    if not found:
        raise ValueError("no samples to fit thresholds on: expected at least one")
    return torch.cat(found, 1)


def exit_shares(costs: Sequence[float], budget: float) -> list[float]:
    """Return the geometric shares of samples that leave at each exit and cost `budget` on average.

    `costs` are those of stopping at each exit, in rising order. With a budget of the last one or
    more, all samples may run to the end.
    """
    if budget >= costs[-1]:
        return [0.0] * (len(costs) - 1) + [1.0]
    if budget < costs[0]:
        raise BudgetError(
            f"a budget of {budget:.4g} is below {costs[0]:.4g}, the cost of the first exit, "
            "which every sample passes"
        )
    low, high = -50.0, 50.0  # bounds of log r: all samples at the first exit, or at the last
    # Bisect log r: the average cost rises with it.
    for _ in range(100):
        middle = (low + high) / 2
        if _average(costs, _geometric(middle, len(costs))) > budget:
            high = middle
        else:
            low = middle
    return _geometric(low, len(costs))


def fit_thresholds(scores: Tensor, costs: Sequence[float], budget: float) -> list[float]:
    """Fit a threshold for each exit but the last to validation scores [exits, n].

    On these samples the average cost is at most the budget, and below it by at most one sample's
    way from the first exit to the last; or by more if samples have equal confidence, since these
    leave together.
    """
    _, samples = scores.shape
    thresholds: list[float] = []
    left, share = torch.zeros(samples, dtype=torch.bool), 0.0
    for confidence, leaving in zip(scores[:-1], exit_shares(costs, budget)[:-1], strict=True):
        share += leaving
        # The small term keeps an exact share from being rounded up by one sample.
        due = math.ceil(samples * share - 1e-9) - int(left.sum())
        thresholds.append(_threshold(confidence[~left], due))
        left = left | (confidence >= thresholds[-1])
    return thresholds


def exits_taken(scores: Tensor, thresholds: Sequence[float]) -> Tensor:
    """Return the exit, from 0, at which each sample of `scores` [exits, n] leaves."""
    sure = scores[:-1] >= scores.new_tensor(thresholds)[:, None]
    last = torch.ones(1, scores.shape[1], dtype=torch.bool)
    return torch.cat((sure, last)).int().argmax(0)  # the first of the largest


def cheapest_thresholds(
    scores: Tensor, hits: Tensor, costs: Sequence[float], loss: float
) -> list[float]:
    """Return the cheapest thresholds that lose at most `loss` of the last exit's accuracy.

    `hits` [exits, n] marks the samples of `scores` that each exit answers right. Budgets are tried
    in hundredths of the way from the last exit's cost down to the first one's, until one loses
    more: a cheaper one that is good again would be so by chance.
    """
    wanted = hits[-1].double().mean() - loss - 1e-9
    cheapest = [math.inf] * (len(costs) - 1)
    for budget in torch.linspace(costs[-1], costs[0], 101, dtype=torch.float64)[1:].tolist():
        thresholds = fit_thresholds(scores, costs, budget)
        taken = exits_taken(scores, thresholds)
        if hits.gather(0, taken[None]).double().mean() < wanted:
            break
        cheapest = thresholds
    return cheapest


def _threshold(candidates: Tensor, due: int) -> float:
    """Return the confidence of the candidate number `due`, in order of falling confidence."""
    if not len(candidates):
        return 0.0  # all samples left before: so do any that get here later
    return float(candidates.topk(due).values[-1]) if due > 0 else math.inf


def _geometric(log_ratio: float, exits: int) -> list[float]:
    weights = torch.arange(exits, dtype=torch.float64) * log_ratio
    shares: list[float] = weights.softmax(0).tolist()
    return shares


def _average(costs: Sequence[float], shares: Sequence[float]) -> float:
    return sum(cost * share for cost, share in zip(costs, shares, strict=True))
