"""Prediction with early exits: anytime, or under a budget, where easy samples leave early."""

from inference.anytime import Answers, anytime
from inference.early_exit import classify
from inference.ensemble import RunningEnsemble, WholeEnsemble
from inference.latency import milliseconds
from inference.thresholds import (
    BudgetError,
    cheapest_thresholds,
    exit_shares,
    exits_taken,
    fit_thresholds,
    scores,
)
from models.frozen import freeze, needs_statistics, only_last_exit

__all__ = [
    "Answers",
    "BudgetError",
    "RunningEnsemble",
    "WholeEnsemble",
    "anytime",
    "cheapest_thresholds",
    "classify",
    "exit_shares",
    "exits_taken",
    "fit_thresholds",
    "freeze",
    "milliseconds",
    "needs_statistics",
    "only_last_exit",
    "scores",
]
