"""Sends a run's numbers to a tracker, Weights & Biases or MLflow, after each round.

A tracker that cannot be opened ends a run before its first round, with the reason. One that fails
later is logged, and the run continues: all its numbers are in metrics.jsonl, too.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from filelock import FileLock

from server_app.config.composing import Config, plain
from server_app.config.saved import flat
from server_app.config.typed import ConfigError
from server_app.record.metrics import finite, numbers
from strategies.observer import Observer

log = logging.getLogger("flwr")  # the logger that `flwr log` shows

MLFLOW_FILE = "mlflow.db"
RUN_TAG = "nestfl.run_id"
"""Tag by which a resumed run finds its earlier part in MLflow."""
LONGEST_VALUE = 500
"""Most characters of a setting that MLflow takes on all servers."""


MOST_SETTINGS = 100
"""Most settings that MLflow takes at once."""


class Service(Protocol):
    """A service that receives a run's numbers."""

    def send(self, round: int, values: Mapping[str, float]) -> None:
        """Send a round's numbers, by names such as levels/1/accuracy."""

    def close(self, failed: bool) -> None:
        """Send the rest, and the state in which the run ended."""


@contextmanager
def tracking(config: Config, directory: Path) -> Iterator[Observer]:
    """Open the tracker that a config asks for; it is closed with the run."""
    if config.tracker.name == "none":
        yield Observer()
        return
    try:
        opened = Wandb if config.tracker.name == "wandb" else MLflow
        tracker = Tracker(opened(config, directory))
    except Exception as error:
        raise ConfigError(f"tracker={config.tracker.name} cannot be opened: {error}") from error
    failed = True
    try:
        yield tracker
        failed = False
    finally:
        tracker.close(failed)


class Tracker(Observer):
    """Sends each round's numbers; after a first failure it sends nothing more."""

    def __init__(self, service: Service) -> None:
        self._service: Service | None = service

    def finished_round(self, metrics: Mapping[str, Any]) -> None:
        values = dict(numbers(finite(metrics)))
        self._try(lambda service: service.send(metrics["round"], values))

    def close(self, failed: bool) -> None:
        self._try(lambda service: service.close(failed))

    def _try(self, action: Any) -> None:
        if self._service is None:
            return
        try:
            action(self._service)
        except Exception as error:  # whatever the error, the run's own record has the numbers
            self._service = None
            log.warning("the tracker has failed, and the run goes on without it: %s", error)


class Wandb:
    """A run of Weights & Biases, over the network or as files that `wandb sync` sends later."""

    def __init__(self, config: Config, directory: Path) -> None:
        import wandb

        self._run = wandb.init(
            project=config.tracker.project,
            name=directory.name,
            group=directory.parent.name,
            id=config.run_id,
            resume="allow",
            mode=config.tracker.mode,
            dir=directory,
            config=plain(config),
            settings=wandb.Settings(console="off", silent=True),
        )
        self._run.define_metric("*", step_metric="round")  # a resumed run sends some rounds again

    def send(self, round: int, values: Mapping[str, float]) -> None:
        self._run.log({"round": round, **values})

    def close(self, failed: bool) -> None:
        self._run.finish(exit_code=int(failed))


class MLflow:
    """A run of MLflow, on a tracking server or in a file beside the run directories."""

    def __init__(self, config: Config, directory: Path) -> None:
        from mlflow import MlflowClient

        beside = directory.parent / MLFLOW_FILE
        with FileLock(f"{beside}.lock"):  # runs of a comparison start at the same time
            self._client = MlflowClient(config.tracker.uri or f"sqlite:///{beside}")
            found = self._client.get_experiment_by_name(config.tracker.project)
            experiment = (
                found.experiment_id
                if found
                else self._client.create_experiment(config.tracker.project)
            )
            earlier = self._earlier(experiment, config)
            self._run = earlier or self._new(experiment, config, directory)

    def _earlier(self, experiment: str, config: Config) -> str | None:
        """Return the MLflow run that a resumed run continues; None if there is none."""
        known = self._client.search_runs([experiment], f"tags.`{RUN_TAG}` = '{config.run_id}'")
        for run in known:
            self._client.update_run(run.info.run_id, status="RUNNING")
            return str(run.info.run_id)
        return None

    def _new(self, experiment: str, config: Config, directory: Path) -> str:
        from mlflow.entities import Param

        tags = {RUN_TAG: str(config.run_id)}
        run = self._client.create_run(experiment, tags=tags, run_name=directory.name)
        settings = [
            Param(key, str(value)[:LONGEST_VALUE]) for key, value in flat(plain(config)).items()
        ]
        for start in range(0, len(settings), MOST_SETTINGS):
            some = settings[start : start + MOST_SETTINGS]
            self._client.log_batch(run.info.run_id, params=some)
        return str(run.info.run_id)

    def send(self, round: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(name, value, now, round) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self, failed: bool) -> None:
        self._client.set_terminated(self._run, "FAILED" if failed else "FINISHED")
