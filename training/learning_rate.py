"""The schedule of the learning rate: from round to round, and within the first by its warm-up."""

from __future__ import annotations

import math

from protocol.train_settings import TrainSettings


def learning_rate(settings: TrainSettings, round: int) -> float:
    """Return the learning rate of a round, after any warm-up; rounds are counted from 1."""
    if round < 1:
        raise ValueError(f"round is {round}: expected at least 1")
    if settings.schedule == "step":
        passed = sum(milestone <= round for milestone in settings.milestones)
        return settings.lr * float(settings.gamma**passed)
    if settings.schedule == "cosine":
        # From lr in the first round towards 0 after the last, which so still learns something.
        progress = min(round - 1, settings.rounds) / settings.rounds
        return settings.lr * (1 + math.cos(math.pi * progress)) / 2
    return settings.lr


def warmed_up(settings: TrainSettings, step: int) -> float:
    """Return the share of its rate that a client's step has; steps count from 1 through all rounds.

    It rises in equal parts up to the step that ends the warm-up.
    """
    return min(1.0, step / settings.warmup) if settings.warmup else 1.0
