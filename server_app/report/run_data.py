"""A run's directory as the report reads it: also of a run that goes on, was killed, or is old."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from server_app.config.saved import CONFIG_FILE
from server_app.config.typed import ConfigError
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

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def seed(self) -> str:
        return str(self.config.get("seed", ""))

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The newest value of each score, and sums over all rounds."""
        return summarise(self.lines)

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
        for line in reversed(self.lines):
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


def read_run(directory: Path) -> RunData:
    """Read a run's directory, or raise a `ConfigError` where it is none."""
    if not (directory / CONFIG_FILE).is_file():
        what = "holds no run" if directory.is_dir() else "is no folder"
        raise ConfigError(f"{directory} {what}: expected a run's directory, with a {CONFIG_FILE}")
    text = (directory / CONFIG_FILE).read_text(encoding="utf-8")
    finished = (directory / SUMMARY_FILE).is_file()
    try:
        config, lines = yaml.safe_load(text), read_metrics(directory / METRICS_FILE)
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{directory} cannot be read: {error}") from error
    return RunData(
        directory=directory.resolve(),
        config=config if isinstance(config, dict) else {},
        config_text=text,
        lines=lines,
        fleet=read_fleet(directory / FLEET_FILE),
        finished=finished,
        reason=None if finished else _reason(directory / PROGRESS_FILE),
    )


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
