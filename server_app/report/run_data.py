"""A run's directory as the report reads it: also of a run that goes on, was killed, or is old."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from server_app.budgets import BudgetFacts
from server_app.config.saved import CONFIG_FILE
from server_app.config.typed import ConfigError
from server_app.record.best import SCORE
from server_app.record.files import FLEET_FILE, METRICS_FILE, PROGRESS_FILE, SUMMARY_FILE
from server_app.record.fleet_record import FleetRecord, LevelFacts, read_fleet
from server_app.record.metrics import RoundMetrics, read_metrics
from server_app.record.summary import summarise

Spent = Literal["rounds", "bytes", "seconds", "macs"]
"""What training has taken up to a round: seconds are the devices', added up."""
SPENT: tuple[Spent, ...] = get_args(Spent)

Curve = dict[int, float]
"""Values by round."""


@dataclass(frozen=True, eq=False)
class RunData:
    """One run: what it was asked to do, and what came of it so far."""

    directory: Path
    config: Mapping[str, Any]
    config_text: str
    lines: list[RoundMetrics]
    fleet: FleetRecord | None
    """None of a run that an older version made."""
    finished: bool
    reason: str | None = None
    """Why it ended before its last round, where it said so."""
    at_best: bool = False
    """Whether its scores are those after its best round, rather than after its last."""
    recorded_budgets: Mapping[str, list[BudgetFacts]] = field(default_factory=dict)
    """What levels come to under budgets, by level, after the last round."""

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def seed(self) -> str:
        return str(self.config.get("seed", ""))

    @cached_property
    def best_round(self) -> int | None:
        """The round with the best score on validation data, the earliest of equals."""
        scores = self.curve(lambda line: line.get(SCORE))
        return max(scores, key=scores.__getitem__, default=None)

    @property
    def counted(self) -> list[RoundMetrics]:
        """The lines of the rounds up to the one whose scores are told."""
        return self._until(self.best_round) if self.at_best else self.lines

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The newest value of each score, and sums over all rounds."""
        return summarise(self.counted)

    @cached_property
    def best_mean(self) -> float | None:
        """The mean accuracy of the levels after the best round."""
        return summarise(self._until(self.best_round)).get("mean") if self.best_round else None

    def _until(self, last: int | None) -> list[RoundMetrics]:
        return [line for line in self.lines if last is None or line["round"] <= last]

    @property
    def budgets(self) -> Mapping[str, list[BudgetFacts]]:
        """What levels come to under budgets, where that is of the scores' own round."""
        return {} if self.at_best else self.recorded_budgets

    @property
    def levels(self) -> list[str]:
        """Names of what was tested: the levels by their numbers, then whatever else."""
        return sorted(self.summary["levels"], key=by_number)

    @property
    def exits(self) -> list[str]:
        """The units that any level's exits follow."""
        levels = self.summary["levels"].values()
        return sorted({unit for level in levels for unit in level.get("exits", {})}, key=by_number)

    @cached_property
    def kinds(self) -> list[str]:
        """What clients tested, such as `local` and `global`."""
        found = [
            what
            for line in self.lines
            for what in (*line.get("asked", {}), "local", "global")
            if isinstance(line.get(what), (int, float))
        ]
        order = {"local": 0, "global": 1}
        return sorted(set(found), key=lambda kind: (order.get(kind, 2), kind))

    @cached_property
    def level_facts(self) -> dict[str, LevelFacts]:
        """What the levels are and cost, by number; nothing where the run did not record it."""
        return {str(level["number"]): level for level in self.fleet["levels"]} if self.fleet else {}

    def level_sums(self, what: str) -> dict[str, float]:
        """Return a count of the rounds' slices, such as `replied`, added up for each level."""
        sums: dict[str, float] = {}
        for line in self.lines:
            for level, counts in line.get("slices", {}).items():
                sums[level] = sums.get(level, 0) + counts.get(what, 0)  # type: ignore[operator]
        return sums

    @cached_property
    def trained_rounds(self) -> dict[str, int]:
        """In how many rounds each client's reply was taken."""
        counts: dict[str, int] = {}
        for line in self.lines:
            for client in line.get("trained", {}):
                counts[client] = counts.get(client, 0) + 1
        return counts

    def scores(self, kind: str) -> tuple[int, dict[str, float]]:
        """Return every client's accuracy in its newest test, and the round of that."""
        for line in reversed(self.counted):
            if found := line.get("scores", {}).get(kind):
                return line["round"], found
        return 0, {}

    def curve(self, pick: Callable[[Mapping[str, Any]], float | None]) -> Curve:
        """Return what `pick` finds in the rounds' lines."""
        found = {line["round"]: pick(line) for line in self.lines}
        return {number: value for number, value in found.items() if value is not None}

    def spent(self, what: Spent) -> Curve:
        """Return what was spent up to each round; nothing where it was not recorded."""
        rounds = [line["round"] for line in self.lines]
        if what == "rounds":
            return {number: number for number in rounds}
        each = [_spent_in(line, what) for line in self.lines]
        known = [value for value in each if value is not None]
        if len(known) < len(each):
            return {}
        return dict(zip(rounds, accumulate(known), strict=True))


def _spent_in(line: RoundMetrics, what: Spent) -> float | None:
    if line["round"] == 0:  # the start, before any training
        return 0
    if what == "bytes":
        traffic = line.get("bytes")
        return None if traffic is None else traffic.get("down", 0) + traffic.get("up", 0)
    key = "device_seconds" if what == "seconds" else "macs"
    slices: Iterable[Mapping[str, Any]] = line.get("slices", {}).values()
    found = [counts.get(key) for counts in slices]
    return None if not found or None in found else sum(value or 0 for value in found)


def read_run(directory: Path, at_best: bool = False) -> RunData:
    """Read a run's directory, or raise a `ConfigError` where it is none.

    With `at_best` its scores are those after its best round.
    """
    if not (directory / CONFIG_FILE).is_file():
        what = "holds no run" if directory.is_dir() else "is no folder"
        raise ConfigError(f"{directory} {what}: expected a run's directory, with a {CONFIG_FILE}")
    text = (directory / CONFIG_FILE).read_text(encoding="utf-8")
    finished = (directory / SUMMARY_FILE).is_file()
    try:
        config, lines = yaml.safe_load(text), read_metrics(directory / METRICS_FILE)
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{directory} cannot be read: {error}") from error
    run = RunData(
        directory=directory.resolve(),
        config=config if isinstance(config, dict) else {},
        config_text=text,
        lines=lines,
        fleet=read_fleet(directory / FLEET_FILE),
        finished=finished,
        reason=None if finished else _reason(directory / PROGRESS_FILE),
        at_best=at_best,
        recorded_budgets=_budgets(directory / SUMMARY_FILE) if finished else {},
    )
    if at_best and run.best_round is None:
        raise ConfigError(
            f"{directory} has no best round: no score on the clients' validation parts is recorded "
            "(checkpoint.best, dataset.validation)"
        )
    return run


def _budgets(summary: Path) -> Mapping[str, list[BudgetFacts]]:
    """Return what the end of a run says of budgets; nothing where it does not, or is damaged."""
    try:
        found: Any = json.loads(summary.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found.get("budgets", {}) if isinstance(found, dict) else {}


def _reason(progress: Path) -> str | None:
    """Return what a run that has ended said of its end."""
    if not progress.is_file():
        return None
    for line in reversed(progress.read_text(encoding="utf-8", errors="replace").splitlines()):
        try:
            event = json.loads(line)
        except ValueError:  # cut by a kill
            continue
        ended = isinstance(event, dict) and event.get("event") == "end"
        return str(event["reason"]) if ended and event.get("reason") else None
    return None


def by_number(name: str) -> tuple[bool, int, str]:
    """Sort by numbers; what is none comes after them."""
    return not name.isdecimal(), int(name) if name.isdecimal() else 0, name
