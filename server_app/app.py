"""The ServerApp: composes the config, builds the strategy, and keeps the run's record."""

from __future__ import annotations

import json
import logging
import os
import shlex
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from data.overview import dealt, notes
from protocol import failures
from protocol.environment import STARTED_IN
from server_app.building import evaluator, strategy_of
from server_app.config.composing import Config, compose_and_tell
from server_app.config.overrides import start_of_paths, with_absolute_paths
from server_app.config.weights import read_weights
from server_app.predictor import budgets_of
from server_app.record.fleet_record import measured_budgets
from server_app.record.recorder import Recorder
from server_app.record.run_record import RunRecord
from server_app.record.summary import show, summarise
from server_app.record.trackers import tracking
from server_app.resume import start_of
from strategies.observer import Observers
from strategies.round import NestedStrategy

app = ServerApp()
log = logging.getLogger("flwr")  # the logger that `flwr log` shows
failures.shorten(log)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation that run_config's `hydra` asks for."""
    simulated_in = os.environ.get(STARTED_IN)  # see client_app/__init__.py
    start = Path(simulated_in or ".")
    directory = str(context.run_config.get("run-dir", ""))
    if simulated_in and not directory:
        start = start_of_paths(start)
    overrides = str(context.run_config.get("hydra", ""))
    config, notes = compose_and_tell(with_absolute_paths(start, overrides))
    for note in notes:
        log.warning("%s", note)
    config = replace(config, output=str(start / config.output))
    if config.engine != "ray":
        log.warning("engine=%s is a key of `nestfl run`: Flower runs on its own", config.engine)
    command = str(context.run_config.get("command", "")) or shlex.join(
        ["flwr", "run", ".", "--run-config", f"hydra={json.dumps(overrides)}"]
    )
    run(grid, config, start / directory if directory else None, command)


def run(
    grid: Grid, config: Config, directory: Path | None = None, command: str = ""
) -> NestedStrategy:
    """Run all rounds, or those that are left of a resumed run; `directory` gets a new run's record.

    The record names `command` as the one that repeats the run.
    """
    start = start_of(config)
    config = replace(config, run_id=config.run_id or uuid4().hex)
    opened = RunRecord.resume(config, start) if start else RunRecord.create(config, directory)
    with opened as record, tracking(config, record.directory) as tracker:
        log.info("This run's directory is %s", record.directory)
        if config.dataset.is_natural:
            for line in notes(config.dataset, dealt(config.dataset)):
                log.warning("%s: %s", config.dataset.path, line)
        recorder = Recorder(record, config, start, command)
        place = config.model.weights if not start else None
        weights = read_weights(place) if place else None
        observers = Observers(recorder, tracker)
        federated = strategy_of(config, evaluator(config), observers, weights, start)
        recorder.strategy = federated
        try:
            federated.start(grid)
        except BaseException as error:
            record.require_there()  # otherwise the run's end would be written into a new folder
            recorder.ended(f"{type(error).__name__}: {error}")
            if config.report and isinstance(error, Exception):  # not for a user who stops the run
                _make_report(record)
            raise
        summary = summarise(record.metrics(), recorder.best.metrics)
        if recorder.fleet and (measured := measured_budgets(recorder.fleet)):
            summary["measured_budgets"] = measured
        if config.report:
            summary["budgets"] = budgets_of(record.directory)
        record.finish(summary)
        recorder.ended(None)
        if config.report:
            _make_report(record)
        show(record, summary)
    return federated


def _make_report(record: RunRecord) -> None:
    from server_app.report.page import make_report  # at the end only: slow to import

    make_report(record)
