"""Runs the trials of a comparison side by side, each as a `nestfl run` of its own.

An interrupted trial leaves its checkpoints, and the next comparison resumes from there. A trial
that fails does not stop the others.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from typing import IO, Protocol

from nestfl.comparing.comparison import LOGS, Comparison
from nestfl.comparing.trials import Trial
from nestfl.launching.process_group import ProcessGroup
from nestfl.launching.stopping import StopRequest
from nestfl.watching.progress import Follower, RunState, Silence
from server_app.config.typed import ConfigError

PAUSE = 0.2
"""Seconds between two looks at the runs."""
LAST_WORDS = 3
"""Lines of a failed run's output that are shown."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
"""Runs on the local engine get one core each: all cores are busy, and sums have a fixed order."""


@dataclass(frozen=True)
class Slots:
    """The number of runs at a time, and each run's part of this machine."""

    jobs: int
    gpus: Sequence[str] = ()
    """Names of GPUs; each run uses one of them in turn."""
    workers: int | None = None
    """Clients at a time of a run on Ray; None on the local engine."""

    def environment(self, slot: int) -> dict[str, str]:
        """Return the additions to the environment of the run in a slot."""
        threads = ONE_THREAD if self.workers is None else {}
        gpu = {VISIBLE: self.gpus[slot % len(self.gpus)]} if self.gpus else {}
        return {**threads, **gpu}


def visible_gpus(count: int) -> tuple[str, ...]:
    """Return the names of the GPUs that this process sees, which may differ from 0, 1..."""
    named = os.environ.get(VISIBLE, "").split(",")
    return (
        tuple(named[:count])
        if len(named) >= count > 0 and named[0]
        else tuple(map(str, range(count)))
    )


@dataclass
class Running:
    """A trial whose run has not ended."""

    trial: Trial
    slot: int
    process: Popen[bytes]
    output: IO[bytes]
    follower: Follower
    began: float

    @property
    def state(self) -> RunState:
        return self.follower.state


@dataclass
class Progress:
    """The progress of a comparison."""

    total: int
    jobs: int
    done: int = 0
    """Trials that have finished, in this or an earlier start."""
    waiting: int = 0
    running: list[Running] = field(default_factory=list)
    failed: dict[Trial, str] = field(default_factory=dict)
    """Reason of each failed trial."""
    losses: dict[Trial, str] = field(default_factory=dict)
    """The last loss of each ended trial, in words."""
    seconds: list[float] = field(default_factory=list)
    """Duration of each trial that finished in this start."""

    def seconds_left(self) -> float | None:
        """Return the remaining time, at the pace of the runs so far."""
        left = [each.state.seconds_left() for each in self.running]
        known = [each for each in left if each is not None]
        if not self.seconds and not known:
            return None
        whole = sum(self.seconds) / len(self.seconds) if self.seconds else self._whole_of_one()
        rest = [whole if each is None else each for each in left]
        return max([(sum(rest) + whole * self.waiting) / self.jobs, *rest], default=0.0)

    def _whole_of_one(self) -> float:
        """Return the duration of a run, estimated from the current runs."""
        now = time.monotonic()
        return max(now - each.began + (each.state.seconds_left() or 0.0) for each in self.running)


class Display(Protocol):
    """Shows a comparison's progress."""

    def update(self, progress: Progress, ended: Sequence[Trial]) -> None:
        """Show the progress, with the trials that have ended since the last call."""


def run_trials(
    comparison: Comparison, slots: Slots, display: Display, stop: StopRequest, app_dir: Path
) -> Progress:
    """Run all unfinished trials; raise `Stopped` if the user stops the comparison."""
    waiting = deque(comparison.unfinished())
    total = len(comparison.trials)
    progress = Progress(total, slots.jobs, total - len(waiting), len(waiting))
    (comparison.folder / LOGS).mkdir(exist_ok=True)
    with ProcessGroup(_environment(app_dir), Path.cwd()) as group:
        while waiting or progress.running:
            stop.check()
            ended = _ended(comparison, progress)
            while waiting and len(progress.running) < slots.jobs:
                trial = waiting.popleft()
                try:
                    progress.running.append(_start(comparison, trial, progress, slots, group))
                except (ConfigError, OSError) as error:  # another process has its directory
                    progress.failed[trial] = str(error)
                    ended.append(trial)
            progress.waiting = len(waiting)
            display.update(progress, ended)
            time.sleep(PAUSE)
    return progress


def _start(
    comparison: Comparison, trial: Trial, progress: Progress, slots: Slots, group: ProcessGroup
) -> Running:
    """Start a trial's run in the first free slot."""
    taken = {each.slot for each in progress.running}
    slot = next(number for number in range(slots.jobs) if number not in taken)
    directory = comparison.directory(trial)
    command = [sys.executable, "-m", "nestfl", "run", "--quiet"]
    if comparison.prepare(trial):
        command += ["--resume", str(directory), f"engine={comparison.engine}"]
    else:
        command += ["--run-dir", str(directory), *trial.overrides, *comparison.plugin_options()]
    if slots.workers is not None:
        command += ["--workers", str(slots.workers)]
    follower = Follower(directory)
    output = comparison.log(trial).open("wb")
    process = group.start(command, output, slots.environment(slot))
    return Running(trial, slot, process, output, follower, time.monotonic())


def _ended(comparison: Comparison, progress: Progress) -> list[Trial]:
    """Return the runs that have ended since the last look, and count them."""
    ended = []
    for each in list(progress.running):
        each.follower.step(Silence())
        code = each.process.poll()
        if code is None:
            continue
        each.output.close()
        progress.running.remove(each)
        progress.losses[each.trial] = each.state.loss
        if code == 0:
            progress.done += 1
            progress.seconds.append(time.monotonic() - each.began)
        else:
            progress.failed[each.trial] = _last_words(comparison.log(each.trial), code)
        ended.append(each.trial)
    return ended


def _last_words(log: Path, code: int) -> str:
    """Return the reason of a run's failure from the end of its output."""
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    told = next((n for n, line in enumerate(lines) if line.startswith("nestfl run:")), None)
    shown = lines[told : told + LAST_WORDS] if told is not None else lines[-LAST_WORDS:]
    return "; ".join(line.strip() for line in shown) or f"it ended with exit code {code}"


def _environment(app_dir: Path) -> dict[str, str]:
    """Return the environment of the runs, which import this same app."""
    paths = [str(app_dir), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
