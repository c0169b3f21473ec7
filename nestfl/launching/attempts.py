"""A run from Flower's start to its end, and once more where clients' processes have died."""

from __future__ import annotations

import shlex
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen

from rich.console import Console

from nestfl.launching import failure
from nestfl.launching.flower import LaunchError, Simulation, flower_run
from nestfl.launching.stopping import Stopped, StopRequest, stop_request
from nestfl.watching.display import display_on
from nestfl.watching.progress import Follower, RunState
from server_app.record.files import (
    LAUNCHER_LOCK,
    LOG_FILE,
    PROGRESS_FILE,
    RECORD_LOCK,
    SUMMARY_FILE,
)


@dataclass
class Run:
    """The app's run in a directory, with the overrides and the checkpoint that it starts from."""

    app_dir: Path
    run_dir: Path
    overrides: str
    """As one string; that it resumes is among them."""
    resume: Path | None
    simulation: Simulation
    console: Console
    errors: Console
    quiet: bool = False
    state: RunState = field(default_factory=RunState)

    @property
    def log(self) -> Path:
        return self.run_dir / LOG_FILE

    def finish(self) -> int:
        """Run to the end and return the exit code; say why if it is not 0."""
        try:
            with stop_request() as stop:
                self._run(stop)
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

    # Flower goes on sending messages to a Ray actor that is dead, and has no way to start another:
    # the run stops when too few clients answer, and only a new one has all of its actors.
    def _run(self, stop: StopRequest) -> None:
        written = {_version(file) for file in _checkpoints(self.run_dir)}
        self._attempt(self.overrides, stop)
        if self.state.reason is None or not self.state.crashed:
            return
        new = any(_version(file) not in written for file in _checkpoints(self.run_dir))
        if (start := self.run_dir if new else self.resume) is not None:
            self.errors.out(
                f"nestfl run: processes of clients died{_after(self.state)}: {self.state.reason}\n"
                f"  Going on from the last checkpoint, once: resume={start}",
                highlight=False,
            )
            self._attempt(f"resume={shlex.quote(str(start))}", stop)

    def _attempt(self, overrides: str, stop: StopRequest) -> None:
        """Start Flower and follow it; there is a reason afterwards unless the run ended well."""
        (self.run_dir / PROGRESS_FILE).unlink(missing_ok=True)
        follower = Follower(self.run_dir)
        self.state = follower.state
        summary = _version(self.run_dir / SUMMARY_FILE)
        logged = self.log.stat().st_size if self.log.exists() else 0
        config: dict[str, str | bool] = {"hydra": overrides, "run-dir": str(self.run_dir)}
        with (
            display_on(self.console, self.quiet) as display,
            flower_run(self.app_dir, config, self.simulation, self.log, stop.check) as flower,
        ):
            follower.follow(display, lambda: _is_running(flower, stop))
        if self.state.reason is None and _version(self.run_dir / SUMMARY_FILE) == summary:
            # What the log held before is of the run that this one resumes.
            log = self.log.read_bytes()[logged:].decode(errors="replace")
            self.state.reason = "\n".join(failure.reason(log))

    def _remove_if_empty(self) -> None:
        """Leave nothing of a start that came to nothing; a log with something in it is kept."""
        there = {file.name for file in self.run_dir.glob("*")}
        logged = self.log.exists() and self.log.stat().st_size > 0
        if not logged and there <= {LOG_FILE, LAUNCHER_LOCK, RECORD_LOCK}:
            shutil.rmtree(self.run_dir, ignore_errors=True)

    def _say_failed(self, reason: str) -> None:
        self.errors.out(f"nestfl run: the run failed{_after(self.state)}", highlight=False)
        more = [f"The full log: {self.log}", *_how_to_resume(self.run_dir)]
        for line in [*failure.shown(reason), *more]:
            self.errors.out(f"  {line}", highlight=False)

    def _say_stopped(self) -> None:
        hint = _how_to_resume(self.run_dir) or ["No checkpoint was written yet."]
        self.errors.out(f"nestfl run: stopped{_after(self.state)}. {hint[0]}", highlight=False)


def _is_running(flower: Popen[bytes], stop: StopRequest) -> bool:
    stop.check()
    return flower.poll() is None


def _checkpoints(run_dir: Path) -> list[Path]:
    return sorted(run_dir.rglob("*.safetensors"), key=lambda file: file.stat().st_mtime)


def _how_to_resume(run_dir: Path) -> list[str]:
    checkpoints = _checkpoints(run_dir)
    if not checkpoints:
        return []
    command = shlex.join(["nestfl", "run", "--resume", str(run_dir)])
    return [f"The checkpoint is {checkpoints[-1]}; go on with: {command}"]


def _after(state: RunState) -> str:
    return f" after round {state.round} of {state.rounds or '?'}" if state.round else ""


def _version(file: Path) -> tuple[int, int] | None:
    """Differs whenever the file was written."""
    try:
        return file.stat().st_mtime_ns, file.stat().st_ino
    except FileNotFoundError:
        return None
