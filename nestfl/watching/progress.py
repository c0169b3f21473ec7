"""Follows the files that a run writes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from protocol.documents import DocumentError, parse_json
from server_app.record.files import METRICS_FILE, PROGRESS_FILE
from server_app.record.round_line import (
    accuracies_of,
    loss_part,
    perplexities_part,
    personal_part,
    system_part,
    tested_loss_part,
    validation_part,
)

RECENT_ROUNDS = 5


class JsonLines:
    """The lines that are added to a file of JSON lines from now on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = path.stat().st_size if path.exists() else 0

    def new(self) -> list[dict[str, Any]]:
        """Return the whole lines since the last call; a half-written one waits for its end."""
        try:
            with self._path.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                self._read = min(self._read, end)  # a resumed run cuts what it does again
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
    except DocumentError:  # cut by a kill
        return None
    return record if isinstance(record, dict) else None


class Work(NamedTuple):
    """Work of the server's own in a round, how many of its steps are done, and after which loss."""

    round: int
    what: str
    done: int
    of: int
    loss: float | None = None
    """The mean of the clients' that have trained in the round."""


class Answers(NamedTuple):
    """Questions to clients besides training, such as tests, in a round: answered, and asked."""

    round: int
    what: str
    done: int
    of: int


@dataclass
class RunState:
    """The state of a run, as its files tell it."""

    rounds: int | None = None
    round: int = 0
    """The last round that has ended."""
    replies: tuple[int, int] | None = None
    """Replies that have come in the current round, and those expected."""
    answers: Answers | None = None
    """Answers to tests that have come in the current round."""
    work: Work | None = None
    """What the server does by itself after the replies."""
    loss: str = ""
    """The mean loss of the clients' training in that round, in words."""
    personal: str = ""
    """The score of what clients have trained on their own test parts, in words."""
    accuracies: dict[str, float] = field(default_factory=dict)
    """Each level's accuracy at the last evaluation, by its number, which may be marked."""
    system: str = ""
    """The accuracy of the collaborative system, in words."""
    perplexities: str = ""
    """Those of a language model, in words."""
    test_loss: str = ""
    """The levels' mean loss at that evaluation, in words."""
    validation: str = ""
    """The score on the clients' validation parts at that evaluation, in words."""
    lacks: dict[str, str] = field(default_factory=dict)
    """The levels that nobody holds, and what that makes of them."""
    attackers: int = 0
    """Clients that attack the others."""
    nodes: int = 0
    without: dict[str, int] = field(default_factory=dict)
    """Of the nodes, how many lack a part to test on, by the part's name."""
    reason: str | None = None
    """Why the run stopped before its end."""
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
        if number > self.round:  # the same round is told of by both files
            self.round = number
            self.replies = self.answers = self.work = None
            self._ends.append(now)


class Display(Protocol):
    """A place where progress is shown."""

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
