"""Manages a comparison's folder: a run directory for each trial, and the result tables.

runs/compare-seed-strategy-1f2e3d4c/
    comparison.json                   the command, and the trials
    strategy-scalefl_seed-0/          an ordinary run directory
    logs/strategy-scalefl_seed-0.log  the run's output
    table.md, table.csv, table.json   the results
    report.html                       the results with pictures
    plugins/                          the user's own code, if runs have any
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NotRequired, TypedDict

import plugins
from nestfl.comparing.fairness import settings_of
from nestfl.comparing.results import TARGETS, Result, Target
from nestfl.comparing.trials import Trial
from protocol.documents import DocumentError, read_json
from server_app.config.composing import Config, load
from server_app.config.saved import CONFIG_FILE
from server_app.config.typed import ConfigError
from server_app.record import checkpoint
from server_app.record.files import (
    COMPARISON_FILE,
    LAUNCHER_LOCK,
    PATIENCE,
    PROGRESS_FILE,
    RECORD_LOCK,
    SUMMARY_FILE,
    Lock,
    write_text,
)
from server_app.record.serving_settings import serving_of

LOGS = "logs"


class Compared(TypedDict):
    """A trial in the record."""

    run: str
    choices: dict[str, str]


class Record(TypedDict):
    """The content of comparison.json."""

    command: list[str]
    baseline: dict[str, str]
    target: float | None
    target_score: NotRequired[str]  # absent in older versions' files
    trials: list[Compared]


@dataclass(frozen=True)
class Comparison:
    """The requested trials, and the folder that holds their runs."""

    folder: Path
    trials: Sequence[Trial]
    configs: Sequence[Config]
    notes: Sequence[str] = ()
    """Notes on values of the trials that were changed without being asked for."""

    @property
    def engine(self) -> str:
        """The engine of all its runs."""
        return self.configs[0].engine

    def directory(self, trial: Trial) -> Path:
        """Return the run directory of a trial."""
        return self.folder / trial.name

    def log(self, trial: Trial) -> Path:
        """Return the file of a trial's output."""
        return self.folder / LOGS / f"{trial.name}.log"

    def results(self) -> list[Result]:
        """Return the results of the trials that have finished."""
        found = (
            Result.read(
                trial, self.directory(trial), config.train.epochs, serving_of(config.fleet.serving)
            )
            for trial, config in zip(self.trials, self.configs, strict=True)
        )
        return [result for result in found if result is not None]

    def unfinished(self) -> list[Trial]:
        """Return the trials that have not finished, in their order."""
        return [each for each in self.trials if not (self.directory(each) / SUMMARY_FILE).exists()]

    def check_runs(self) -> None:
        """Raise `ConfigError` if an existing run has other settings."""
        for trial, config in zip(self.trials, self.configs, strict=True):
            file = self.directory(trial) / CONFIG_FILE
            if not file.exists():
                continue
            there, now = settings_of(load(file)), settings_of(config)
            for key in sorted(now.keys() | there.keys()):
                if there.get(key) == now.get(key):
                    continue
                raise ConfigError(
                    f"{self.directory(trial)} is of other settings: {key} is {there.get(key)} "
                    f"there, {now.get(key)} now; give the comparison another name=, or remove it"
                )

    def prepare(self, trial: Trial) -> bool:
        """Return whether a trial's run can be resumed; remove a run that cannot.

        The run of a killed comparison may take a while to end: this waits for it.
        """
        directory = self.directory(trial)
        there = {file.name for file in directory.iterdir()} if directory.is_dir() else set()
        if not there:
            return False
        if not there & {CONFIG_FILE, LAUNCHER_LOCK}:
            raise ConfigError(f"{directory} is no run's: remove it, or give another name=")
        for lock in (LAUNCHER_LOCK, RECORD_LOCK):
            Lock(directory / lock, PATIENCE).close()
        (directory / PROGRESS_FILE).unlink(missing_ok=True)
        if any((directory / checkpoint.FOLDER).glob(checkpoint.NEWEST)):
            return True
        shutil.rmtree(directory)
        return False

    def plugin_options(self) -> list[str]:
        """Return the options that load the user's own code from the copy that `write` keeps."""
        kept = (self.folder / plugins.FOLDER / each.path.name for each in plugins.chosen())
        return [text for path in kept for text in ("--plugin", str(path))]

    def write(self, command: Sequence[str], baseline: Mapping[str, str], target: Target) -> None:
        """Write the record for `read`, and a copy of the user's own code, which may change."""
        plugins.write(self.folder)
        record = {
            "command": command,
            "baseline": baseline,
            "target": target.share,
            "target_score": target.score,
            "trials": [{"run": each.name, "choices": dict(each.choices)} for each in self.trials],
        }
        write_text(self.folder / COMPARISON_FILE, json.dumps(record, indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path) -> tuple[Comparison, dict[str, str], Target]:
        """Return a folder's comparison of the existing runs, with its baseline and target."""
        file = folder / COMPARISON_FILE
        try:
            record: Record = read_json(file, Record)
        except (OSError, DocumentError) as error:
            raise ConfigError(f"{file} is no record of a comparison: {error}") from error
        trials = [Trial(each["choices"]) for each in record["trials"]]
        baseline = record["baseline"]
        target = Target(record["target"], record.get("target_score", Target.score))
        if target.score not in TARGETS:
            choices = ", ".join(TARGETS)
            raise ConfigError(
                f"{file}: target_score is {target.score!r}: expected one of {choices}"
            )
        there = [each for each in trials if (folder / each.name / CONFIG_FILE).exists()]
        configs = [load(folder / each.name / CONFIG_FILE) for each in there]
        return cls(folder, there, configs), baseline, target
