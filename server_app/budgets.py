"""What a run's levels come to when easy inputs leave at early exits, for the report."""

from __future__ import annotations

import logging
from pathlib import Path

from data.clients import global_test
from server_app.predictor import Predictor, front
from server_app.record.summary import BudgetFacts
from server_app.trained_level import TrainedRun

BATCH = 256
"""Inputs that are answered at once."""

log = logging.getLogger("flwr")  # whose lines `flwr log` shows


def budgets_of(run: Path) -> dict[str, list[BudgetFacts]]:
    """Return what budgets come to, by level, of levels with several exits that were trained.

    The thresholds take the clients' validation parts: where the server has none, say so.
    """
    found: dict[str, list[BudgetFacts]] = {}
    try:
        trained = TrainedRun(run)
        for level in map(trained.level, trained.levels):
            one_answer = level.dataset.holds != "language"  # the words of a text leave together
            if len(level.exits) > 1 and one_answer and not level.untrained:
                points = front(Predictor(level, BATCH), global_test(level.dataset))
                found[str(level.number)] = [
                    {"budget": each.budget, "macs": each.macs, "accuracy": each.accuracy}
                    for each in points
                ]
    except Exception as error:  # whatever it is, the run's results are there
        log.info("the report is without budgets: %s", error)
    return found
