"""Reads a run's directory for the report, also of a run that goes on, was killed, or is old."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from server_app.budgets import BudgetFacts
from server_app.config.saved import CONFIG_FILE
from server_app.config.typed import ConfigError
from server_app.record.confusion import read_confusion
from server_app.record.ending import end_reason
from server_app.record.files import (
    CONFUSION_FILE,
    FLEET_FILE,
    METRICS_FILE,
    PROGRESS_FILE,
    SUMMARY_FILE,
)
from server_app.record.fleet_record import read_fleet
from server_app.record.metrics import RoundMetrics, read_metrics
from server_app.report.run_data import RunData


def read_run(directory: Path, at_best: bool = False) -> RunData:
    """Read a run's directory, or raise a `ConfigError` where it is none.

    With `at_best` its scores are those after its best round.
    """
    if not (directory / CONFIG_FILE).is_file():
        what = "holds no run" if directory.is_dir() else "is no folder"
        raise ConfigError(f"{directory} {what}: expected a run's directory, with a {CONFIG_FILE}")
    finished = (directory / SUMMARY_FILE).is_file()
    text, config = _config(directory / CONFIG_FILE)
    run = RunData(
        directory=directory.resolve(),
        config=config,
        config_text=text,
        lines=_lines(directory / METRICS_FILE),
        fleet=read_fleet(directory / FLEET_FILE),
        finished=finished,
        reason=None if finished else end_reason(directory / PROGRESS_FILE),
        at_best=at_best,
        recorded_budgets=_budgets(directory / SUMMARY_FILE) if finished else {},
        confusion=read_confusion(directory / CONFUSION_FILE),
    )
    if at_best and run.best_round is None:
        raise ConfigError(
            f"{directory} has no best round: no score on the clients' validation parts is recorded "
            "(checkpoint.best, dataset.validation)"
        )
    return run


def _config(file: Path) -> tuple[str, Mapping[str, Any]]:
    try:
        text = file.read_text(encoding="utf-8")
        config = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    return text, config if isinstance(config, dict) else {}


def _lines(file: Path) -> list[RoundMetrics]:
    try:
        lines = read_metrics(file)
    except ValueError as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error
    for line in lines:
        if not isinstance(line, dict) or "round" not in line:
            raise ConfigError(f"{file} cannot be read: {str(line)[:60]} is no round's line")
    return lines


def _budgets(summary: Path) -> Mapping[str, list[BudgetFacts]]:
    """Return the accuracies under budgets of a run's end; nothing where none can be read."""
    try:
        found: Any = json.loads(summary.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found.get("budgets", {}) if isinstance(found, dict) else {}
