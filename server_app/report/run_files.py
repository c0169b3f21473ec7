"""Reads a run's directory for the report, also of a running, killed or old run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

from plugins.regular_files import open_regular
from protocol.documents import DocumentError, read_json
from server_app.config.saved import CONFIG_FILE, read_settings
from server_app.config.typed import ConfigError
from server_app.record.files import (
    CONFUSION_FILE,
    FLEET_FILE,
    METRICS_FILE,
    PROGRESS_FILE,
    SUMMARY_FILE,
)
from server_app.record.fleet_record import read_fleet
from server_app.record.metrics import read_confusion, read_metrics
from server_app.record.run_entry import end_reason
from server_app.record.summary import BudgetFacts
from server_app.report.run_data import RunData


class Budgets(TypedDict, total=False):
    """The part of summary.json that is read here."""

    budgets: dict[str, list[BudgetFacts]]  # by level


def read_run(directory: Path, at_best: bool = False) -> RunData:
    """Read a run's directory, or raise a `ConfigError` where it is none.

    With `at_best` its scores are those after its best round.
    """
    if not (directory / CONFIG_FILE).is_file():
        what = "holds no run" if directory.is_dir() else "is no folder"
        raise ConfigError(f"{directory} {what}: expected a run's directory, with a {CONFIG_FILE}")
    try:
        run = _run(directory, at_best)
    except DocumentError as error:
        raise ConfigError(str(error)) from error
    if at_best and run.best_round is None:
        raise ConfigError(
            f"{directory} has no best round: no score on the clients' validation parts is recorded "
            "(checkpoint.best, dataset.validation)"
        )
    return run


def _run(directory: Path, at_best: bool) -> RunData:
    finished = (directory / SUMMARY_FILE).exists()
    config = read_settings(directory / CONFIG_FILE)
    with open_regular(directory / CONFIG_FILE, "r") as opened:
        text = opened.read()
    return RunData(
        directory=directory.resolve(),
        config=config,
        config_text=text,
        lines=read_metrics(directory / METRICS_FILE),
        fleet=read_fleet(directory / FLEET_FILE),
        finished=finished,
        reason=None if finished else end_reason(directory / PROGRESS_FILE),
        at_best=at_best,
        recorded_budgets=_budgets(directory / SUMMARY_FILE) if finished else {},
        confusion=read_confusion(directory / CONFUSION_FILE),
    )


def _budgets(summary: Path) -> Mapping[str, list[BudgetFacts]]:
    """Return the budgets in a run's summary; empty without any."""
    found: Budgets = read_json(summary, Budgets)
    return found.get("budgets", {})
