"""One run as the report shows it: its settings, its rounds, and its scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

from server_app.record.checkpoint import worth_of
from server_app.record.fleet_record import ClientFacts, FleetRecord, LevelFacts
from server_app.record.metrics import Confusion, RoundMetrics, score_of
from server_app.record.summary import BudgetFacts, summarise

Spent = Literal["rounds", "bytes", "seconds", "macs"]
"""Kinds of cost of training up to a round; seconds are the sum over all devices."""

ALWAYS = ("local", "global", "personal")
"""Kinds of clients' tests, in the order in which they are shown."""

Curve = dict[int, float]
"""Values by round."""


@dataclass(frozen=True, eq=False)
class RunData:
    """One run: its config, and the record of its rounds so far."""

    directory: Path
    config: Mapping[str, Any]
    config_text: str
    lines: list[RoundMetrics]
    fleet: FleetRecord | None
    """None of a run that an older version made."""
    finished: bool
    reason: str | None = None
    """The reason why it ended before its last round, where it gave one."""
    at_best: bool = False
    """True if its scores are those after its best round, rather than after its last."""
    recorded_budgets: Mapping[str, list[BudgetFacts]] = field(default_factory=dict)
    """Accuracies under budgets after the last round, by level."""
    confusion: Confusion | None = None
    """Confusion matrices of the newest test; None where they are not recorded."""

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def seed(self) -> str:
        return str(self.config.get("seed", ""))

    @cached_property
    def best_round(self) -> int | None:
        """The round with the best score on validation data, the earliest of equals."""
        worth = {line["round"]: worth_of(line) for line in self.lines}
        known = {number: value for number, value in worth.items() if value is not None}
        return max(known, key=known.__getitem__, default=None)

    @property
    def counted(self) -> list[RoundMetrics]:
        """The lines of the rounds up to the one whose scores are shown."""
        return self._until(self.best_round) if self.at_best else self.lines

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The newest value of each score, up to the round whose scores are shown."""
        return summarise(self.counted)

    @cached_property
    def totals(self) -> dict[str, Any]:
        """Sums over all rounds."""
        return summarise(self.lines)

    @property
    def rounds(self) -> int:
        """The newest round."""
        return int(self.totals["rounds"])

    @cached_property
    def best_mean(self) -> float | None:
        """The mean accuracy of the levels after the best round."""
        if self.best_round is None:
            return None
        return summarise(self._until(self.best_round)).get("mean")

    def _until(self, last: int | None) -> list[RoundMetrics]:
        return [line for line in self.lines if last is None or line["round"] <= last]

    @property
    def budgets(self) -> Mapping[str, list[BudgetFacts]]:
        """Accuracies under budgets by level, where they are of the scores' own round."""
        return {} if self.at_best else self.recorded_budgets

    @property
    def levels(self) -> list[str]:
        """Names of the networks that were tested: levels by their numbers, then other names."""
        return sorted(self.summary["levels"], key=by_number)

    @property
    def exits(self) -> list[str]:
        """The units that any level's exits follow."""
        levels = self.summary["levels"].values()
        return sorted({unit for level in levels for unit in level.get("exits", {})}, key=by_number)

    @cached_property
    def kinds(self) -> list[str]:
        """Kinds of the clients' tests, such as `local` and `global`."""
        found = [
            what
            for line in self.lines
            for what in (*line.get("asked", {}), *ALWAYS)
            if score_of(line, what) is not None
        ]
        order = {kind: place for place, kind in enumerate(ALWAYS)}
        return sorted(set(found), key=lambda kind: (order.get(kind, len(ALWAYS)), kind))

    @property
    def of_systems(self) -> list[str]:
        """The score of a collaborative system, where the fleet is one."""
        return ["cis"] if "cis" in self.summary else []

    @cached_property
    def level_facts(self) -> dict[str, LevelFacts]:
        """Size and costs of the levels, by number; nothing where the run did not record them."""
        return {str(level["number"]): level for level in self.fleet["levels"]} if self.fleet else {}

    @property
    def clients(self) -> Mapping[str, ClientFacts]:
        """The clients by number; none of a run that an older version made."""
        return self.fleet["clients"] if self.fleet else {}

    def level_of(self, client: str) -> str:
        """Return the level that a client holds; empty where that is not recorded."""
        return str(self.clients[client]["level"]) if client in self.clients else ""

    def level_sums(self, what: str) -> dict[str, float]:
        """Return a count of the rounds' slices, such as `replied`, added up for each level."""
        sums: dict[str, float] = {}
        for line in self.lines:
            for level, counts in line.get("slices", {}).items():
                sums[level] = sums.get(level, 0) + counts.get(what, 0)  # type: ignore[operator]
        return sums

    @cached_property
    def trained_rounds(self) -> dict[str, int]:
        """Number of rounds in which each client's reply was taken."""
        counts: dict[str, int] = {}
        for line in self.lines:
            for client in line.get("trained", {}):
                counts[client] = counts.get(client, 0) + 1
        return counts

    def scores(self, kind: str) -> tuple[int, dict[str, float]]:
        """Return every client's accuracy in its newest test, and the round of that."""
        for line in reversed(self.counted):
            personal = line.get("personal", {}).get("scores", {}) if kind == "personal" else {}
            if found := line.get("scores", {}).get(kind) or personal:
                return line["round"], found
        return 0, {}

    def value(self, *path: str) -> float | None:
        """Return the newest value at a path of keys, such as levels, 1, accuracy."""
        return found_at(self.summary, path)

    def curve(self, *path: str) -> Curve:
        """Return the values at a path of keys by round."""
        found = {line["round"]: found_at(line, path) for line in self.lines}
        return {number: value for number, value in found.items() if value is not None}

    def spent(self, what: Spent) -> Curve:
        """Return the cost up to each round; nothing where it was not recorded."""
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
    slices: Mapping[str, Mapping[str, Any]] | None = line.get("slices")
    if slices is None:
        return None
    found = [counts.get(key) for counts in slices.values()]
    return None if None in found else sum(value or 0 for value in found)


def found_at(scores: Mapping[str, Any], path: Sequence[str]) -> float | None:
    """Return the value at a path of keys in a round's line or a summary; None where it is not."""
    *outer, last = path
    found: Any = scores
    for key in outer:
        found = found.get(key, {})
    return score_of(found, last)


def by_number(name: str) -> tuple[bool, int, str]:
    """Return a key that sorts numbers first, in their order, and then other names."""
    return not name.isdecimal(), int(name) if name.isdecimal() else 0, name
