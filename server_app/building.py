"""Builds the strategy that a config asks for, and the test of its networks on the server."""

from __future__ import annotations

from torch import nn

from data.clients import global_test
from models import State
from protocol.reports import Evaluation
from server_app.config.composing import Config
from server_app.record.checkpoint import Checkpoint
from strategies.evaluation import Evaluate, classes_counted
from strategies.observer import Observer
from strategies.registry import method
from strategies.round import NestedStrategy
from training.testing import evaluate


def strategy_of(
    config: Config,
    evaluate: Evaluate | None = None,
    observer: Observer | None = None,
    weights: State | None = None,
    start: Checkpoint | None = None,
) -> NestedStrategy:
    """Return the strategy of a config, with pre-trained weights or the state of a checkpoint."""
    chosen = method(config.strategy.name)
    made = chosen(config, config.strategy, evaluate, observer, weights)
    if start is not None:
        made.load_state_dict(start.tensors)
    return made


def evaluator(config: Config) -> Evaluate:
    """Return a function that tests a network on the global test set, on which no client trains."""
    data, settings = global_test(config.dataset), config.train
    ensemble, together = config.strategy.ensemble, config.fleet.topology is not None
    by_class = classes_counted(config.task)

    def evaluated(net: nn.Module) -> Evaluation:
        reports = evaluate(
            net,  # type: ignore[arg-type]
            data,
            settings,
            ensemble,
            one_by_one=together,
            by_class=by_class,
        )
        return Evaluation(
            len(data),
            tuple(report.accuracy for report in reports),
            tuple(report.loss for report in reports),
            reports[-1].answered if reports else None,
            reports[-1].confusion if reports else None,
        )

    return evaluated
