"""Shows how far a comparison is: a bar for each run on a terminal, else a line for each ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn
from rich.progress import Progress as Bars

from nestfl.comparing.running import Display, Progress
from nestfl.comparing.trials import Trial
from server_app.record.round_line import accuracies_part


class EndedRuns:
    """One line for each run that has ended, for a log file or a pipe."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def update(self, progress: Progress, ended: Sequence[Trial]) -> None:
        for trial in ended:
            how = f"failed: {progress.failed[trial]}" if trial in progress.failed else "finished"
            parts = [f"{_so_far(progress)}, {trial} {how}", left(progress)]
            self._console.out(", ".join(filter(None, parts)), highlight=False)


class RunBars:
    """A bar of the runs, and one for each that is under way, with its rounds."""

    def __init__(self, console: Console) -> None:
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
        )
        self._runs: TaskID = self._bars.add_task("runs", total=None, note="")
        self._tasks: dict[Trial, TaskID] = {}
        self._lines = EndedRuns(self._bars.console)

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
                self._tasks[each.trial] = self._bars.add_task(str(each.trial), note="starting")
            state = each.state
            if state.rounds is not None:
                note = accuracies_part(state.accuracies)
                self._bars.update(
                    self._tasks[each.trial], total=state.rounds, completed=state.round, note=note
                )
        ended_runs = progress.done + len(progress.failed)
        self._bars.update(
            self._runs, total=progress.total, completed=ended_runs, note=left(progress)
        )


@contextmanager
def comparison_display_on(console: Console) -> Iterator[Display]:
    """Show bars on a terminal, lines elsewhere."""
    if not console.is_terminal:
        yield EndedRuns(console)
    else:
        with RunBars(console) as bars:
            yield bars


def left(progress: Progress) -> str:
    """Tell how long the rest will take; nothing where that is not known."""
    seconds = progress.seconds_left()
    return "" if not seconds else f"{timedelta(seconds=round(seconds))} left"


def _so_far(progress: Progress) -> str:
    return f"run {progress.done + len(progress.failed)} of {progress.total}"
