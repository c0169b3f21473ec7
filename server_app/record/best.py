"""The best checkpoint: of the round with the highest validation score, beside the newest ones."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TYPE_CHECKING, Any

from server_app.record import checkpoint
from server_app.record.checkpoint import BEST, FOLDER, Checkpoint, CheckpointError
from training.perplexity import perplexity_of

if TYPE_CHECKING:
    from torch import Tensor

SCORE = "validation"
"""The metric that rounds are compared by: the accuracy, or a language model's perplexity."""

log = logging.getLogger("flwr")  # whose lines `flwr log` shows


def worth_of(metrics: Mapping[str, Any]) -> float | None:
    """Return what a round is worth, the higher the better; None where clients did not validate."""
    accuracy: float | None = metrics.get(SCORE)
    if perplexity_of(SCORE) not in metrics:
        return accuracy
    value: float | None = metrics[perplexity_of(SCORE)]
    return -math.inf if value is None else -value  # null: it was infinite


class BestCheckpoint:
    """Keeps the checkpoint with the highest score; of equal ones the earliest."""

    def __init__(self, directory: Path) -> None:
        """Keep it in the folder of a run's checkpoints."""
        self.file = directory / BEST
        self.metrics: Mapping[str, Any] | None = None
        """Of the round that is kept; None if there is none yet."""
        self._warned = False

    def consider(
        self, metrics: Mapping[str, Any], tensors: Callable[[], Mapping[str, Tensor]]
    ) -> None:
        """Keep a round if it is the best so far; `tensors` returns its state."""
        score = worth_of(metrics)
        best = worth_of(self.metrics or {})
        if score is None:
            self._say_what_lacks(metrics)
        elif best is None or score > best:
            state = {"metrics": dict(metrics)}
            checkpoint.write(self.file, metrics["round"], tensors(), state)
            self.metrics = metrics

    def go_on(self, start: Checkpoint) -> None:
        """Take up what an earlier start has kept; rounds after `start` are yet to come, and go.

        The round of `start` counts as well: its run may have been killed before it was kept here.
        """
        if self.file.exists():
            try:
                kept = checkpoint.load(self.file)
                if kept.round > start.round:
                    self.file.unlink()
                elif SCORE in kept.state.get("metrics", {}):
                    self.metrics = kept.state["metrics"]
            except CheckpointError as error:
                log.warning("%s; the best of the rounds to come takes its place", error)
        found = start.state.get("metrics", {})
        if found.get(SCORE) is not None:
            self.consider(found, lambda: start.tensors)

    def say_what_counts(self, held: AbstractSet[int], validated: AbstractSet[int]) -> None:
        """Say by which levels rounds are compared, where some level has no validation examples."""
        unknown = ", ".join(map(str, sorted(held - validated)))
        if not validated:
            log.warning(
                "no client has validation examples: no best checkpoint is kept, only the newest; "
                "dataset.validation is the share of each client's examples, rounded down"
            )
        elif unknown:
            log.warning(
                "no client of level %s has validation examples: rounds are compared by the other "
                "levels alone, and the best checkpoint is chosen so",
                unknown,
            )

    def _say_what_lacks(self, metrics: Mapping[str, Any]) -> None:
        asked = metrics.get("asked", {}).get(SCORE)
        if asked is not None and asked["asked"] and not self._warned:
            self._warned = True
            log.warning(
                "no validation score after round %d, so it cannot be the best: %d of %d clients "
                "answered, and nobody of one level at least",
                *(metrics["round"], asked["answered"], asked["asked"]),
            )


def load_best(run: Path) -> Checkpoint:
    """Load the best checkpoint of a run directory, or raise `CheckpointError`."""
    file = run / FOLDER / BEST
    if not file.exists():
        raise CheckpointError(
            f"{run} has no best checkpoint: a run keeps one from its first test on, where "
            "checkpoint.best is true and dataset.validation above 0"
        )
    return checkpoint.load(file)
