"""A comparison's folder: a run directory for each trial, and what they came to.

runs/compare-seed-strategy-1f2e3d4c/
    comparison.json                   the command, and the trials
    strategy-scalefl_seed-0/          a run directory, as any other
    logs/strategy-scalefl_seed-0.log  what was said when it ran
    table.md, table.csv, table.json   the results
    report.html                       the same with pictures
    plugins/                          the user's own code, if runs have some
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
    """A trial, as the record has it."""

    run: str
    choices: dict[str, str]


class Record(TypedDict):
    """What comparison.json holds."""

    command: list[str]
    baseline: dict[str, str]
    target: float | None
    target_score: NotRequired[str]  # none of an older version
    trials: list[Compared]


@dataclass(frozen=True)
class Comparison:
    """The trials that were asked for, and the folder that holds their runs."""

    folder: Path
    trials: Sequence[Trial]
    configs: Sequence[Config]
    notes: Sequence[str] = ()
    """What was changed for them that nobody had asked for."""

    @property
    def engine(self) -> str:
        """What all its runs run on."""
        return self.configs[0].engine

    def directory(self, trial: Trial) -> Path:
        """Return the run directory of a trial."""
        return self.folder / trial.name

    def log(self, trial: Trial) -> Path:
        """Return where a trial's output goes."""
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
        """Return the trials that are still to run, in their order."""
        return [each for each in self.trials if not (self.directory(each) / SUMMARY_FILE).exists()]

    def check_runs(self) -> None:
        """Raise `ConfigError` if a run that is there already was of other settings."""
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
        """Return whether a trial's run can be resumed; what cannot is cleared away.

        The run of a comparison that was killed may take a while to end: it is waited for.
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
        """Return the options of a run that name the user's own code, as `write` has kept it."""
        kept = (self.folder / plugins.FOLDER / each.path.name for each in plugins.chosen())
        return [text for path in kept for text in ("--plugin", str(path))]

    def write(self, command: Sequence[str], baseline: Mapping[str, str], target: Target) -> None:
        """Write down what is compared, for `read`; and the code, lest it changes on the way."""
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
        """Return what was compared in a folder, of the runs that are there; baseline and target."""
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
