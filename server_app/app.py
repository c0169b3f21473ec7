"""The ServerApp: composes the config, builds the strategy, and keeps the run's record."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from torch import nn

from data.clients import global_test
from models.task import Task
from protocol.records import Evaluation
from server_app.config.checkout import start_of_paths
from server_app.config.composing import Config, compose, with_absolute_paths
from server_app.config.weights import read_weights
from server_app.record import checkpoint
from server_app.record.recorder import Recorder
from server_app.record.run_record import RunRecord
from server_app.record.summary import show, summarise
from strategies.base import NestedStrategy
from strategies.federation import Federation
from strategies.levels.planning import Split
from strategies.registry import strategy
from training.testing import evaluate

app = ServerApp()
log = logging.getLogger("flwr")  # whose lines `flwr log` shows


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the federation that run_config's `hydra` asks for."""
    simulated_in = os.environ.get("NESTFL_STARTED_IN")  # see client_app/__init__.py
    start = Path(simulated_in or ".")
    directory = str(context.run_config.get("run-dir", ""))
    if simulated_in and not directory:
        start = start_of_paths(start)
    config = compose(with_absolute_paths(start, str(context.run_config.get("hydra", ""))))
    config = replace(config, output=str(start / config.output))
    if config.engine != "ray":
        log.warning("engine=%s is a key of `nestfl run`: Flower runs on its own", config.engine)
    run(grid, config, start / directory if directory else None)


def run(grid: Grid, config: Config, directory: Path | None = None) -> NestedStrategy:
    """All rounds, or those that are left of a resumed run; a new one's record in `directory`."""
    start = checkpoint.load(Path(config.resume)) if config.resume else None
    with (
        RunRecord.resume(config, start) if start else RunRecord.create(config, directory)
    ) as record:
        log.info("This run's directory is %s", record.directory)
        recorder = Recorder(record, config)
        chosen = strategy(config.strategy.name)
        federated = chosen(federation(config), evaluator(config), recorder)
        recorder.strategy = federated
        if start:
            federated.load_state_dict(start.tensors)
        try:
            federated.start(grid)
        except BaseException as error:
            recorder.ended(f"{type(error).__name__}: {error}")
            raise
        summary = summarise(record.metrics())
        record.finish(summary)
        recorder.ended(None)
        show(record, summary)
    return federated


def federation(config: Config) -> Federation:
    """The strategy's part of the config."""
    weights = config.model.weights
    return Federation(
        task=Task(
            config.model.name,
            config.dataset.facts.num_classes,
            options=tuple(sorted(config.model.options.items())),
            **config.dataset.input_shape,
        ),
        dataset=config.dataset,
        train=replace(config.train, rounds=config.rounds),
        weights=read_weights(weights) if weights and not config.resume else None,
        budgets=config.fleet.budgets,
        tier_of=lambda client, clients: replace(config.fleet, clients=clients).tier_of(client),
        ratios=config.strategy.ratios,
        widths=config.strategy.widths,
        splits=tuple(Split(int(depth), width) for depth, width in config.strategy.splits or ())
        or None,
        cost=config.strategy.cost,
        tolerance=config.strategy.tolerance,
        rounding=config.strategy.rounding,
        levels=config.strategy.levels,
        window_kind=config.strategy.window,
        objective=config.strategy.objective,
        objective_settings=config.strategy.objective_settings,
        seed=config.seed,
        rounds=config.rounds,
        clients_per_round=config.clients_per_round,
        clients=config.fleet.clients,
        window=config.window,
        deadline=config.deadline,
        min_replies=config.min_replies,
        missing_levels=config.missing_levels,
        weighting=config.weighting,
        max_examples=config.max_examples,
        max_update=config.max_update,
        evaluate_every=config.evaluate.every,
        evaluate_clients_every=config.evaluate.clients_every,
        statistics=config.evaluate.statistics,
    )


def evaluator(config: Config) -> Callable[[nn.Module], Evaluation]:
    """Evaluates a network on the global test set, which nobody trains on."""
    data, settings = global_test(config.dataset), config.train

    def evaluated(net: nn.Module) -> Evaluation:
        reports = evaluate(net, data, settings)  # type: ignore[arg-type]
        return Evaluation(
            len(data),
            tuple(report.accuracy for report in reports),
            tuple(report.loss for report in reports),
        )

    return evaluated
