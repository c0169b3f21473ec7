"""Follows a run's files and shows its progress: bars on a terminal, else one line a round."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.text import Text

from protocol.documents import DocumentError, parse_json
from server_app.record.files import METRICS_FILE, PROGRESS_FILE
from server_app.record.metrics import (
    accuracies_of,
    accuracies_part,
    answers_line,
    loss_part,
    perplexities_part,
    personal_part,
    round_line,
    system_part,
    tested_loss_part,
    validation_part,
    work_line,
)

RECENT_ROUNDS = 5
PACE = 10.0
"""Seconds without a line, after which a line tells the progress of tests or server work."""


class JsonLines:
    """Reads the lines that are added to a JSON lines file from now on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = path.stat().st_size if path.exists() else 0

    def new(self) -> list[dict[str, Any]]:
        """Return the complete lines since the last call; a half-written line waits for its end."""
        try:
            with self._path.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                self._read = min(self._read, end)  # a resumed run cuts the rounds that it repeats
                file.seek(self._read)
                added = file.read()
        except FileNotFoundError:
            return []
        whole = added[: added.rfind(b"\n") + 1]
        self._read += len(whole)
        return [record for line in whole.splitlines() if (record := _record(line)) is not None]


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = parse_json(line, PROGRESS_FILE)
    except DocumentError:  # a line that a kill cut short
        return None
    return record if isinstance(record, dict) else None


class Work(NamedTuple):
    """The server's own work in a round: its name, finished steps, and training loss."""

    round: int
    what: str
    done: int
    of: int
    loss: float | None = None
    """Mean training loss of the round's clients."""


class Answers(NamedTuple):
    """Questions to clients besides training, such as tests, in a round: answered and asked."""

    round: int
    what: str
    done: int
    of: int


@dataclass
class RunState:
    """The state of a run according to its files."""

    rounds: int | None = None
    round: int = 0
    """The last round that has ended."""
    replies: tuple[int, int] | None = None
    """Replies of the current round: received and expected."""
    answers: Answers | None = None
    """Answers to the current round's tests."""
    work: Work | None = None
    """The server's own work after the replies."""
    loss: str = ""
    """The mean loss of the clients' training in that round, in words."""
    personal: str = ""
    """The mean personal score of the clients' trained slices, in words."""
    accuracies: dict[str, float] = field(default_factory=dict)
    """Each level's accuracy at the last evaluation, by its number, which may be marked."""
    system: str = ""
    """The accuracy of the collaborative system, in words."""
    perplexities: str = ""
    """The perplexities of a language model, in words."""
    test_loss: str = ""
    """The levels' mean loss at that evaluation, in words."""
    validation: str = ""
    """The score on the clients' validation parts at that evaluation, in words."""
    lacks: dict[str, str] = field(default_factory=dict)
    """The levels without clients, with the kind of lack."""
    attackers: int = 0
    """Clients that attack the others."""
    nodes: int = 0
    without: dict[str, int] = field(default_factory=dict)
    """Number of nodes that lack a test part, by the part's name."""
    reason: str | None = None
    """Reason why the run stopped before its end."""
    crashed: int = 0
    """Clients whose processes had died when it stopped."""
    _ends: list[float] = field(default_factory=list)

    def take_event(self, event: dict[str, Any], now: float) -> None:
        match event:
            case {"event": "start", "rounds": int(rounds), **rest}:
                self.rounds = rounds
                self.lacks = dict(rest.get("lacks", {}))
                self.attackers = int(rest.get("attackers") or 0)
                self.nodes = int(rest.get("nodes") or 0)
                self.without = dict(rest.get("without", {}))
                self._ends = [now]
            case {"event": "reply", "done": int(done), "of": int(of)}:
                self.replies, self.answers, self.work = (done, of), None, None
            case {"event": "answer", "round": int(round), "what": str(what), **rest}:
                self.answers = Answers(round, what, int(rest["done"]), int(rest["of"]))
                self.work = None
            case {"event": "work", "round": int(round), "what": str(what), **rest}:
                done, of = int(rest["done"]), int(rest["of"])
                self.work = Work(round, what, done, of, rest.get("loss"))
            case {"event": "round", "round": int(number)}:
                self._end_round(number, now)
            case {"event": "end", **rest}:
                self.reason = str(rest["reason"]) if rest.get("reason") else None
                self.crashed = int(rest.get("crashed") or 0)

    def take_metrics(self, record: dict[str, Any], now: float) -> None:
        if isinstance(number := record.get("round"), int):
            self._end_round(number, now)
        self.loss = loss_part(record) or self.loss
        self.personal = personal_part(record) or self.personal
        if accuracies := accuracies_of(record):
            self.accuracies, self.validation = accuracies, validation_part(record)
            self.system, self.perplexities = system_part(record), perplexities_part(record)
            self.test_loss = tested_loss_part(record)

    def seconds_left(self) -> float | None:
        """Return the time of the rounds left, at the pace of the last few."""
        if self.rounds is None or len(self._ends) < 2:
            return None
        recent = self._ends[-RECENT_ROUNDS - 1 :]
        pace = (recent[-1] - recent[0]) / (len(recent) - 1)
        return pace * max(self.rounds - self.round, 0)

    def _end_round(self, number: int, now: float) -> None:
        if number > self.round:  # both files have the same round
            self.round = number
            self.replies = self.answers = self.work = None
            self._ends.append(now)


class Display(Protocol):
    """Shows a run's progress."""

    def update(self, state: RunState, finished: list[dict[str, Any]]) -> None:
        """Show the state, and the records of the rounds that have ended since the last call."""


class Follower:
    """Reads a run's files as they grow."""

    def __init__(self, run_dir: Path) -> None:
        self._events = JsonLines(run_dir / PROGRESS_FILE)
        self._metrics = JsonLines(run_dir / METRICS_FILE)
        self.state = RunState()

    def follow(self, display: Display, is_running: Callable[[], bool]) -> None:
        """Show progress until the run has ended."""
        while is_running():
            self.step(display)
            time.sleep(0.2)
        self.step(display)

    def step(self, display: Display) -> None:
        now = time.monotonic()
        for event in self._events.new():
            self.state.take_event(event, now)
        finished = self._metrics.new()
        for record in finished:
            self.state.take_metrics(record, now)
        display.update(self.state, finished)


class Lines:
    """Prints a line per round, and sometimes one about long work or tests, to a file or a pipe."""

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
    """Bars of the rounds, and of the current round's replies, tests and server work; scores."""

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
    """Return the warnings from the start of a run, a line each."""
    lines = (lacks_line(state.lacks), attackers_line(state.attackers), without_line(state))
    return "\n".join(filter(None, lines))


def attackers_line(attackers: int) -> str:
    """Return a warning that clients attack the others; empty without attackers."""
    clients = "1 client attacks" if attackers == 1 else f"{attackers} clients attack"
    return f"Warning: {clients} the others (fleet.attack)" if attackers else ""


def without_line(state: RunState) -> str:
    """Return a warning that clients lack a test part; empty if all have theirs."""
    lacking = [f"{count} of {state.nodes} clients have no {part} part"
               for part, count in state.without.items()]  # fmt: skip
    return f"Warning: {', '.join(lacking)}; these are not asked to test on it" if lacking else ""


def lacks_line(lacks: dict[str, str]) -> str:
    """Return a warning of levels that no client holds; empty if all are held."""
    shown = [f"level {level} ({lack})" for level, lack in lacks.items()]
    return f"Warning: no client holds {', '.join(shown)}" if shown else ""


def time_left(state: RunState) -> str:
    """Return the time that the run will still take; empty if it is not known."""
    seconds = state.seconds_left()
    return "" if not seconds else f"{timedelta(seconds=round(seconds))} left"
