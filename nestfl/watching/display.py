"""Shows how far a run is: bars on a terminal, else one line a round."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.text import Text

from nestfl.watching.progress import Answers, Display, RunState, Work
from server_app.record.round_line import accuracies_part, answers_line, round_line, work_line

PACE = 10.0
"""Seconds without a line after which one tells what the server does, or how far tests are."""


class Lines:
    """One line a round, and now and then one of long work or tests, for a log file or a pipe."""

    def __init__(self, console: Console, pace: float = PACE) -> None:
        self._console, self._pace = console, pace
        self._warned = False
        self._told = time.monotonic()
        self._news: Work | Answers | None = None

    def update(self, state: RunState, finished: list[dict[str, Any]]) -> None:
        if (told := warnings_of(state)) and not self._warned:
            self._console.out(told, highlight=False)
            self._warned = True
        for record in finished:
            parts = (round_line(record, state.rounds), time_left(state))
            self._console.out(", ".join(filter(None, parts)), highlight=False)
            self._told = time.monotonic()
        news = state.work or state.answers
        if news and news != self._news and time.monotonic() - self._told >= self._pace:
            told = work_line(*news) if isinstance(news, Work) else answers_line(*news)
            self._console.out(told, highlight=False)
            self._told, self._news = time.monotonic(), news


class Bars:
    """Bars of the rounds, of the current one's replies, its tests and the server's work; scores."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description:8}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
        )
        self._rounds: TaskID = self._progress.add_task("rounds", total=None, note="starting Flower")
        self._replies: TaskID = self._progress.add_task("replies", total=None, note="")
        self._tests: TaskID = self._progress.add_task("tests", total=None, note="", visible=False)
        self._work: TaskID = self._progress.add_task("server", total=None, note="", visible=False)
        self._found = Text()
        self._live = Live(Group(self._progress, self._found), console=console)

    def __enter__(self) -> Bars:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def update(self, state: RunState, finished: list[dict[str, Any]]) -> None:
        if state.rounds is not None:
            self._progress.update(
                self._rounds, total=state.rounds, completed=state.round, note=time_left(state)
            )
        done, of = state.replies or (0, None)
        self._progress.update(self._replies, total=of, completed=done)
        _, kind, answered, asked = state.answers or (0, "tests", 0, None)
        self._progress.update(
            self._tests,
            description=kind,
            total=asked,
            completed=answered,
            visible=state.answers is not None,
        )
        _, what, step, steps, _ = state.work or (0, "", 0, None, None)
        self._progress.update(
            self._work, total=steps, completed=step, note=what, visible=state.work is not None
        )
        scores = (accuracies_part(state.accuracies), state.system, state.perplexities)
        parts = (state.loss, state.personal, *scores, state.test_loss, state.validation)
        found = ", ".join(filter(None, parts))
        self._found.plain = "\n".join(filter(None, (warnings_of(state), found)))


class Silence:
    """Shows nothing."""

    def update(self, state: RunState, finished: list[dict[str, Any]]) -> None: ...


@contextmanager
def display_on(console: Console, quiet: bool) -> Iterator[Display]:
    """Show bars on a terminal, lines elsewhere."""
    if quiet:
        yield Silence()
    elif not console.is_terminal:
        yield Lines(console)
    else:
        with Bars(console) as bars:
            yield bars


def warnings_of(state: RunState) -> str:
    """Return what the start of a run warns of, a line each."""
    lines = (lacks_line(state.lacks), attackers_line(state.attackers), without_line(state))
    return "\n".join(filter(None, lines))


def attackers_line(attackers: int) -> str:
    """Return a warning that clients attack the others; nothing where none does."""
    clients = "1 client attacks" if attackers == 1 else f"{attackers} clients attack"
    return f"Warning: {clients} the others (fleet.attack)" if attackers else ""


def without_line(state: RunState) -> str:
    """Return a warning that clients lack a part to test on; nothing where all have theirs."""
    lacking = [f"{count} of {state.nodes} clients have no {part} part"
               for part, count in state.without.items()]  # fmt: skip
    return f"Warning: {', '.join(lacking)}; these are not asked to test on it" if lacking else ""


def lacks_line(lacks: dict[str, str]) -> str:
    """Return a warning of levels that no client holds; nothing where all are held."""
    shown = [f"level {level} ({lack})" for level, lack in lacks.items()]
    return f"Warning: no client holds {', '.join(shown)}" if shown else ""


def time_left(state: RunState) -> str:
    """Return how long the run will still take; nothing where that cannot be known."""
    seconds = state.seconds_left()
    return "" if not seconds else f"{timedelta(seconds=round(seconds))} left"
