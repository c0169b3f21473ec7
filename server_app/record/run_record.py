"""A run's directory: what it was asked to do, what came of it, and how to go on.

runs/20260131-120000-heterofl-resnet20-digits/
    config.yaml       the resolved configuration
    fleet.json        its levels, clients and parts, as fleet_record.FleetRecord says
    metrics.jsonl     one line a round, as metrics.RoundMetrics says
    confusion.json    which classes the newest test took for which, as metrics.Confusion says
    checkpoints/      the newest few, and the best (checkpoint.py)
    tensorboard/      the same numbers as events
    summary.json      the end of it (summary.py)
    report.html       all of it, to look at (server_app/report)
    plugins/          the user's own code, if it was started with some
    flower.log        what Flower said, where `nestfl run` started it
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

import plugins
from data.homes import with_home
from protocol.documents import DocumentError
from server_app.config.saved import CONFIG_FILE, run_directory
from server_app.record import checkpoint
from server_app.record.files import (
    CONFUSION_FILE,
    FLEET_FILE,
    METRICS_FILE,
    PATIENCE,
    RECORD_LOCK,
    REPORT_FILE,
    SUMMARY_FILE,
    Lock,
    claim,
    new_directory,
    write_text,
)
from server_app.record.metrics import (
    RoundMetrics,
    confusion_of,
    finite,
    numbers,
    read_confusion,
    read_metrics,
    to_line,
    without_confusion,
    write_confusion,
)

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

    from server_app.config.composing import Config

log = logging.getLogger("flwr")  # the logger that `flwr log` shows


class RunGoneError(OSError):
    """The run's directory has vanished during the run; nothing is left to resume."""

    def __init__(self, directory: Path) -> None:
        super().__init__(
            f"the run's directory {directory} has vanished (deleted, moved, or its disk is gone): "
            "its record is lost, and it cannot be resumed; start it again, output= names a folder"
        )


class RunRecord:
    """Writes a run's directory; a kill at any moment loses at most one round's line.

    No other process writes there until it is closed.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory.resolve()
        self.checkpoints = self.directory / checkpoint.FOLDER
        self.metrics_file = self.directory / METRICS_FILE
        self.confusion_file = self.directory / CONFUSION_FILE
        self.fleet_file = self.directory / FLEET_FILE
        self.summary_file = self.directory / SUMMARY_FILE
        self.report_file = self.directory / REPORT_FILE
        self.tensorboard = self.directory / "tensorboard"
        self._lines: IO[bytes] | None = None
        self._events: SummaryWriter | None = None
        self._lock: Lock | None = None

    @classmethod
    def create(cls, config: Config, directory: Path | None = None) -> Self:
        """Make a new run's directory: the given one, or one by the config; never another run's."""
        output = with_home(config.output)
        record = cls(
            claim(directory) if directory else new_directory(output, config.name, config.label)
        )
        record._open(config)
        plugins.write(record.directory)
        return record

    @classmethod
    def resume(cls, config: Config, start: checkpoint.Checkpoint) -> Self:
        """Open the directory of the checkpoint's run, in its state after that round.

        A run killed between the checkpoint and the round's line lacks that line. It is then taken
        from the checkpoint's state, if that has it under "metrics".
        """
        record = cls(run_directory(start.path))
        record._open(config, PATIENCE)
        lines = [line for line in read_metrics(record.metrics_file) if line["round"] <= start.round]
        write_text(record.metrics_file, "".join(map(to_line, lines)))
        record.summary_file.unlink(missing_ok=True)
        record.report_file.unlink(missing_ok=True)
        missed = start.state.get("metrics")
        record._go_back_to(start.round, missed or {})
        if missed and start.round not in {line["round"] for line in lines}:
            record.append(missed)
        return record

    def _go_back_to(self, round: int, metrics: Mapping[str, Any]) -> None:
        """Remove the matrices of later rounds; those of this round are in its metrics."""
        own = confusion_of(metrics)
        try:
            there = read_confusion(self.confusion_file)
        except DocumentError as error:
            log.warning("%s; the next test on the server writes it anew", error)
            there = None
        if there is None or there["round"] > round:
            self.confusion_file.unlink(missing_ok=True)
        if own is not None:
            write_confusion(self.confusion_file, own)

    def _open(self, config: Config, patience: float = 0.0) -> None:
        """Lock the directory, and write its configuration with the directory's present place."""
        from server_app.config.composing import dump  # takes seconds, and readers do not need it

        self._lock = Lock(self.directory / RECORD_LOCK, patience)
        kept = replace(config, output=str(self.directory.parent))
        write_text(self.directory / CONFIG_FILE, dump(kept))

    def require_there(self) -> None:
        """Raise `RunGoneError` if the directory is no longer where it was opened."""
        deleted = self._lines is not None and not os.fstat(self._lines.fileno()).st_nlink
        if deleted or (self._lock is not None and not self._lock.is_there):
            raise RunGoneError(self.directory)

    def append(self, metrics: RoundMetrics) -> None:
        """Add a round's line, which is safe on disk when this returns, and its events."""
        self.require_there()
        if (confusion := confusion_of(metrics)) is not None:
            write_confusion(self.confusion_file, confusion)
        if self._lines is None:
            self._lines = self.metrics_file.open("ab")
        self._lines.write(to_line(without_confusion(metrics)).encode())
        self._lines.flush()
        os.fsync(self._lines.fileno())
        self._write_events(metrics)

    def metrics(self) -> list[RoundMetrics]:
        """Return the lines of all rounds so far."""
        return read_metrics(self.metrics_file)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the summary and close."""
        self.require_there()
        write_text(self.summary_file, json.dumps(finite(summary), indent=2) + "\n")
        self.close()

    def close(self) -> None:
        """Close the files and release the directory."""
        if self._lines is not None:
            self._lines.close()
        if self._events is not None:
            self._events.close()
        if self._lock is not None:
            self._lock.close()
        self._lines = self._events = self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write_events(self, metrics: RoundMetrics) -> None:
        step = metrics["round"]
        if self._events is None:
            from torch.utils.tensorboard import SummaryWriter

            # `purge_step` hides events of this step and later from before a kill.
            self._events = SummaryWriter(str(self.tensorboard), purge_step=step)
        for tag, value in numbers(metrics):
            self._events.add_scalar(tag, value, step)
        self._events.flush()
