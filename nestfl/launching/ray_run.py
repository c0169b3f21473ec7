"""A run in Flower's simulation, which is started once more where clients' processes have died."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

from nestfl.launching import failure
from nestfl.launching.flower import Simulation, flower_run
from nestfl.launching.launched_run import Run, after_round, checkpoints_in
from nestfl.launching.stopping import StopRequest, stop_request
from nestfl.watching.display import display_on
from nestfl.watching.progress import Follower
from server_app.record.files import PROGRESS_FILE, SUMMARY_FILE


@dataclass(kw_only=True)
class RayRun(Run):
    """The app's run in processes of Flower and Ray, which this process follows."""

    app_dir: Path
    resume: Path | None
    """The checkpoint, or its run, that the run starts from."""
    simulation: Simulation

    # Flower goes on sending messages to a Ray actor that is dead, and has no way to start another:
    # the run stops when too few clients answer, and only a new one has all of its actors.
    def run(self) -> None:
        with stop_request() as stop:
            written = {_version(file) for file in checkpoints_in(self.run_dir)}
            self._attempt(self.overrides, stop)
            if self.state.reason is None or not self.state.crashed:
                return
            new = any(_version(file) not in written for file in checkpoints_in(self.run_dir))
            if (start := self.run_dir if new else self.resume) is not None:
                self.errors.out(
                    f"nestfl run: processes of clients died{after_round(self.state)}: "
                    f"{self.state.reason}\n"
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
        config: dict[str, str | bool] = {
            "hydra": overrides,
            "run-dir": str(self.run_dir),
            "command": self.command,
        }
        with (
            display_on(self.console, self.quiet) as display,
            flower_run(self.app_dir, config, self.simulation, self.log, stop.check) as flower,
        ):
            follower.follow(display, lambda: _is_running(flower, stop))
        if self.state.reason is None and _version(self.run_dir / SUMMARY_FILE) == summary:
            # What the log held before is of the run that this one resumes.
            log = self.log.read_bytes()[logged:].decode(errors="replace")
            self.state.reason = "\n".join(failure.reason(log))


def _is_running(flower: Popen[bytes], stop: StopRequest) -> bool:
    stop.check()
    return flower.poll() is None


def _version(file: Path) -> tuple[int, int] | None:
    """Return a value that differs whenever the file was written."""
    try:
        return file.stat().st_mtime_ns, file.stat().st_ino
    except FileNotFoundError:
        return None
