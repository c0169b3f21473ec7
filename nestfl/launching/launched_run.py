"""A run in its directory: how it ends, and what is said and left when it does."""

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
    """The app's run in a directory."""

    run_dir: Path
    command: str
    """What was typed, for the record: it repeats the run."""
    console: Console
    errors: Console
    quiet: bool = False
    state: RunState = field(default_factory=RunState)

    @abstractmethod
    def run(self) -> None:
        """Run the app; the state has a reason afterwards unless the run ended well."""

    @property
    def log(self) -> Path:
        return self.run_dir / LOG_FILE

    def finish(self) -> int:
        """Run to the end and return the exit code; say why if it is not 0."""
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
        """Leave nothing of a start that came to nothing; a log with something in it is kept."""
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

    A copied directory has other times.
    """
    return sorted((run_dir / FOLDER).glob(NEWEST))


def after_round(state: RunState) -> str:
    """Say after which round something happened; nothing before the first has ended."""
    return f" after round {state.round} of {state.rounds or '?'}" if state.round else ""


def _how_to_resume(run_dir: Path) -> list[str]:
    checkpoints = checkpoints_in(run_dir)
    if not checkpoints:
        return []
    command = shlex.join(["nestfl", "run", "--resume", str(run_dir)])
    return [f"The checkpoint is {checkpoints[-1]}; go on with: {command}"]
