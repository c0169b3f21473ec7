"""Shows a comparison's progress: a bar for each run on a terminal, otherwise lines."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as Bars

from nestfl.comparing.running import Display, Progress
from nestfl.comparing.trials import Trial
from nestfl.watching.progress import RunState
from server_app.record.metrics import accuracies_part

PACE = 60.0
"""Seconds between two lines about the current runs."""


class ProgressLines:
    """Prints a line for each ended run, and sometimes one about the others, for a log file."""

    def __init__(self, console: Console, pace: float = PACE) -> None:
        self._console, self._pace = console, pace
        self._told = time.monotonic()

    def update(self, progress: Progress, ended: Sequence[Trial]) -> None:
        for trial in ended:
            how = f"failed: {progress.failed[trial]}" if trial in progress.failed else "finished"
            self._tell(progress, f"{trial} {how}", progress.losses.get(trial, ""))
        under_way = [
            f"{each.trial} {_round(each.state)}"
            for each in progress.running
            if each.state.rounds is not None
        ]
        if under_way and time.monotonic() - self._told >= self._pace:
            self._tell(progress, *under_way)

    def _tell(self, progress: Progress, *what: str) -> None:
        ended = progress.done + len(progress.failed)
        parts = [f"{ended} of {progress.total} runs", *what, left(progress)]
        self._console.out(", ".join(filter(None, parts)), highlight=False)
        self._told = time.monotonic()


class RunBars:
    """A bar for the number of runs, and one for the rounds of each current run."""

    def __init__(self, console: Console) -> None:
        self._bars = Bars(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=console,
        )
        self._runs: TaskID = self._bars.add_task("runs", total=None, note="")
        self._tasks: dict[Trial, TaskID] = {}
        self._lines = ProgressLines(self._bars.console, pace=math.inf)  # the bars tell the rest

    def __enter__(self) -> RunBars:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def update(self, progress: Progress, ended: Sequence[Trial]) -> None:
        self._lines.update(progress, ended)
        for trial in ended:
            if trial in self._tasks:
                self._bars.remove_task(self._tasks.pop(trial))
        for each in progress.running:
            if each.trial not in self._tasks:
                self._tasks[each.trial] = self._bars.add_task(
                    str(each.trial), total=None, note="starting"
                )
            state = each.state
            if state.rounds is not None:
                scores = (state.perplexities or accuracies_part(state.accuracies), state.system)
                note = ", ".join(filter(None, (state.loss, *scores)))
                self._bars.update(
                    self._tasks[each.trial], total=state.rounds, completed=state.round, note=note
                )
        ended_runs = progress.done + len(progress.failed)
        self._bars.update(
            self._runs, total=progress.total, completed=ended_runs, note=left(progress)
        )


def _round(state: RunState) -> str:
    """Return a run's round and loss as text."""
    return f"round {state.round} of {state.rounds} {state.loss}".strip()


@contextmanager
def comparison_display_on(console: Console) -> Iterator[Display]:
    """Show bars on a terminal, lines elsewhere."""
    if not console.is_terminal:
        yield ProgressLines(console)
    else:
        with RunBars(console) as bars:
            yield bars


def left(progress: Progress) -> str:
    """Return the remaining time as text; empty if it is not known."""
    seconds = progress.seconds_left()
    return "" if not seconds else f"{timedelta(seconds=round(seconds))} left"
