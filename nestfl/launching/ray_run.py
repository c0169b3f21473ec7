"""Runs the app in Flower's simulation; it restarts once if clients' processes have died."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import Popen

from nestfl.launching import failure
from nestfl.launching.flower import Flower, LaunchError, flower
from nestfl.launching.launched_run import Run, after_round, checkpoints_in
from nestfl.launching.request import Request
from nestfl.launching.stopping import StopRequest
from nestfl.watching.progress import Follower, display_on
from server_app.record.files import PROGRESS_FILE, SUMMARY_FILE
from server_app.record.run_record import RunGoneError


@dataclass(kw_only=True)
class RayRun(Run):
    """A run of the app in processes of Flower and Ray, which this process follows."""

    request: Request
    flower: Flower
    """The process that has checked the run and waits to begin."""
    remembers: bool
    """True if clients keep a memory between their rounds."""
    stop: StopRequest

    # Flower keeps sending messages to a dead Ray actor and cannot start another one. The run stops
    # when too few clients answer; only a new simulation has all of its actors.
    def run(self) -> None:
        written = {_version(file) for file in checkpoints_in(self.run_dir)}
        self._attempt(self.flower)
        if self.state.reason is None or not self.state.crashed:
            return
        new = any(_version(file) not in written for file in checkpoints_in(self.run_dir))
        if (start := self.run_dir if new else self.request.resume_path()) is not None:
            self.errors.out(
                f"nestfl run: processes of clients died{after_round(self.state)}: "
                f"{self.state.reason}\n"
                f"  Going on from the last checkpoint, once: resume={start}",
                highlight=False,
            )
            # The typed overrides are in the run's own configuration now, and its plugins beside it.
            again = replace(self.request, overrides=(), plugin=(), resume=start)
            with flower(again) as second:
                answer = second.answer(self.stop.check)
                if answer.error is not None:
                    raise LaunchError(answer.error)
                self._attempt(second)

    def _attempt(self, flower: Flower) -> None:
        """Let the run begin and follow it; afterwards there is a reason unless it ended well."""
        (self.run_dir / PROGRESS_FILE).unlink(missing_ok=True)
        follower = Follower(self.run_dir)
        self.state = follower.state
        summary = _version(self.run_dir / SUMMARY_FILE)
        logged = self.log.stat().st_size if self.log.exists() else 0
        with display_on(self.console, self.quiet) as display:
            flower.go(self.run_dir, self.command, self.remembers)
            follower.follow(display, lambda: _is_running(flower.process, self.stop))
        flower.end()
        if self.state.reason is None and _version(self.run_dir / SUMMARY_FILE) == summary:
            if not self.log.exists():
                self.state.reason = str(RunGoneError(self.run_dir))
                return
            # Earlier text in the log belongs to the run that this one resumes.
            log = self.log.read_bytes()[logged:].decode(errors="replace")
            self.state.reason = "\n".join(failure.reason(log))


def _is_running(process: Popen[bytes], stop: StopRequest) -> bool:
    stop.check()
    return process.poll() is None


def _version(file: Path) -> tuple[int, int] | None:
    """Return a value that differs whenever the file was written."""
    try:
        return file.stat().st_mtime_ns, file.stat().st_ino
    except FileNotFoundError:
        return None
