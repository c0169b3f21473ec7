"""Runs the app in a run directory, and handles the run's end on any engine."""

from __future__ import annotations

import shlex
import shutil
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from nestfl.launching import failure
from nestfl.launching.flower import LaunchError
from nestfl.launching.stopping import Stopped
from nestfl.watching.progress import RunState
from server_app.record.checkpoint import FOLDER, NEWEST
from server_app.record.files import LAUNCHER_LOCK, LOG_FILE, RECORD_LOCK


@dataclass(kw_only=True)
class Run(ABC):
    """A run of the app in its directory."""

    run_dir: Path
    command: str
    """The command that repeats the run, for the record."""
    console: Console
    errors: Console
    quiet: bool = False
    state: RunState = field(default_factory=RunState)

    @abstractmethod
    def run(self) -> None:
        """Run the app; afterwards the state has a reason unless the run ended well."""

    @property
    def log(self) -> Path:
        return self.run_dir / LOG_FILE

    def finish(self) -> int:
        """Run to the end and return the exit code; explain one that is not 0."""
        try:
            self.run()
        except Stopped as stopped:
            self._say_stopped()
            return stopped.exit_code
        except (LaunchError, OSError) as error:
            self.errors.out(f"nestfl run: {error}", highlight=False)
            return 1
        finally:
            self._remove_if_empty()
        if self.state.reason is not None:
            self._say_failed(self.state.reason)
            return 1
        return 0

    def _remove_if_empty(self) -> None:
        """Remove the directory of a run that never began; a log with content is kept."""
        there = {file.name for file in self.run_dir.glob("*")}
        logged = self.log.exists() and self.log.stat().st_size > 0
        if not logged and there <= {LOG_FILE, LAUNCHER_LOCK, RECORD_LOCK}:
            shutil.rmtree(self.run_dir, ignore_errors=True)

    def _say_failed(self, reason: str) -> None:
        self.errors.out(f"nestfl run: the run failed{after_round(self.state)}", highlight=False)
        logged = [f"The full log: {self.log}"] if self.log.exists() else []
        more = [*logged, *_how_to_resume(self.run_dir)]
        for line in [*failure.shown(reason), *more]:
            self.errors.out(f"  {line}", highlight=False)

    def _say_stopped(self) -> None:
        hint = _how_to_resume(self.run_dir) or ["No checkpoint was written yet."]
        self.errors.out(f"nestfl run: stopped{after_round(self.state)}. {hint[0]}", highlight=False)


def checkpoints_in(run_dir: Path) -> list[Path]:
    """Return the checkpoints of a run's newest rounds by their names, the first round first.

    File times do not serve: a copied directory has other ones.
    """
    return sorted((run_dir / FOLDER).glob(NEWEST))


def after_round(state: RunState) -> str:
    """Return "after round N" for a message; empty before the first round has ended."""
    return f" after round {state.round} of {state.rounds or '?'}" if state.round else ""


def _how_to_resume(run_dir: Path) -> list[str]:
    checkpoints = checkpoints_in(run_dir)
    if not checkpoints:
        return []
    command = shlex.join(["nestfl", "run", "--resume", str(run_dir)])
    return [f"The checkpoint is {checkpoints[-1]}; go on with: {command}"]
