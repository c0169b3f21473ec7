"""What a finished run of a comparison came to, from its record alone: no times, so that the same
runs give the same table on every machine.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from nestfl.comparing.trials import Trial, short_name
from server_app.record.files import METRICS_FILE, SUMMARY_FILE
from server_app.record.metrics import RoundMetrics, read_metrics
from training.perplexity import PERPLEXITY, is_perplexity, perplexity_of

SCORES = ("worst", "mean", "local", "global", "personal", "best")
"""Of all levels; personal is of what clients have trained before it is averaged, and best is the
mean after the round that was best on validation data."""
FULL_MODEL = "full model"
"""The last level, which is one of the levels: told by this name where methods have others."""
LAST_PART = 5
"""The last fifth of the rounds tells whether a run was still improving."""
FEWEST_TESTS = 3
"""Tests of all levels that a slope takes."""
IMPROVING = 0.01
"""Rise of the mean accuracy over that part from which on a run was still improving."""


@dataclass(frozen=True, eq=False)
class Result:
    """A finished run: its scores, and how it got there."""

    trial: Trial
    directory: Path
    summary: Mapping[str, Any]
    lines: Sequence[RoundMetrics]

    @classmethod
    def read(cls, trial: Trial, directory: Path) -> Result | None:
        """Return a run's result, or None if it has not finished."""
        try:
            summary = json.loads((directory / SUMMARY_FILE).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return cls(trial, directory, summary, read_metrics(directory / METRICS_FILE))

    @cached_property
    def scores(self) -> dict[str, float]:
        """Its final accuracies by name: those of all levels, then each level's and each exit's.

        Those of a language model have their perplexities beside them: "mean perplexity".
        """
        best = self.summary.get("best", {})
        known = {**self.summary, "best": best.get("mean")}
        known[perplexity_of("best")] = best.get(perplexity_of("mean"))
        names = {name: name for name in SCORES}
        names |= {f"{name} {PERPLEXITY}": perplexity_of(name) for name in SCORES}
        found = {name: known[key] for name, key in names.items() if known.get(key) is not None}
        for number, level in self.summary["levels"].items():
            if level.get("accuracy") is None:
                continue
            found[f"level {number}"] = level["accuracy"]
            if (perplexity := level.get(PERPLEXITY)) is not None:
                found[f"level {number} {PERPLEXITY}"] = perplexity
            exits = level.get("exits", {})
            if len(exits) > 1:
                for unit, scores in exits.items():
                    found[f"level {number}, exit {unit}"] = scores["accuracy"]
        return found

    @property
    def full_model(self) -> float | None:
        """The accuracy of the last level."""
        numbers = [name for name in self.summary["levels"] if name.isdecimal()]
        last = max(numbers, key=int, default=None)
        return None if last is None else self.scores.get(f"level {last}")

    @property
    def curve(self) -> list[tuple[int, float]]:
        """The mean accuracy of all levels, by the rounds after which it was tested."""
        return [
            (line["round"], line["mean"]) for line in self.lines if line.get("mean") is not None
        ]

    @property
    def rise(self) -> float | None:
        """How much the mean accuracy rose in the last fifth of the rounds, by a straight line.

        The line goes through the tests in that fifth, or the last three where there are fewer; None
        if there were not so many.
        """
        last = self.summary["rounds"]
        fifth = max(1, last // LAST_PART)
        within = [test for test in self.curve if test[0] > last - fifth]
        tests = within if len(within) >= FEWEST_TESTS else self.curve[-FEWEST_TESTS:]
        if len(tests) < FEWEST_TESTS:
            return None
        rounds, means = np.array(tests).T
        slope = np.polynomial.Polynomial.fit(rounds, means, 1).convert().coef[-1]
        return float(slope * fifth)

    def spent_until(self, target: float) -> Spent | None:
        """Return what training took until the mean accuracy reached a target; None if never."""
        spent = Spent(0, 0, 0)
        for line in self.lines:
            spent = spent.with_round(line)
            if (mean := line.get("mean")) is not None and mean >= target:
                return spent
        return None

    def steps(self) -> Iterator[tuple[int, Mapping[str, int]]]:
        """Yield for each round the clients that trained, with their examples."""
        for line in self.lines:
            trained: Mapping[str, Any] = line.get("trained", {})
            yield line["round"], {client: each["examples"] for client, each in trained.items()}


@dataclass(frozen=True)
class Spent:
    """What training took: rounds, bytes both ways, and multiply-accumulates on all devices."""

    rounds: int
    bytes: int
    macs: int

    def with_round(self, line: RoundMetrics) -> Spent:
        """Return it with a round more."""
        traffic = line.get("bytes", {})
        macs = sum(part.get("macs", 0) for part in line.get("slices", {}).values())
        sent = traffic.get("down", 0) + traffic.get("up", 0)
        return Spent(line["round"], self.bytes + sent, self.macs + macs)


@dataclass(frozen=True, eq=False)
class Group:
    """The runs that differ in their seed alone."""

    choices: Mapping[str, str]
    results: tuple[Result, ...]

    @property
    def name(self) -> str:
        """Its choices, in short."""
        return short_name(self.choices) or "all runs"

    def values(self, score: str) -> dict[str | None, float]:
        """Return a score by seed, of the runs that have it."""
        found = {
            each.trial.seed: each.full_model if score == FULL_MODEL else each.scores.get(score)
            for each in self.results
        }
        return {seed: value for seed, value in found.items() if value is not None}


def grouped(results: Sequence[Result]) -> list[Group]:
    """Return the groups of results, in the order of their first one."""
    members: dict[tuple[tuple[str, str], ...], list[Result]] = {}
    for result in results:
        members.setdefault(tuple(result.trial.group.items()), []).append(result)
    return [Group(dict(choices), tuple(each)) for choices, each in members.items()]


def score_names(groups: Sequence[Group]) -> list[str]:
    """Return the scores that any run has: those of all levels, then each level and exit.

    Perplexities come after the accuracies.
    """
    names = {name for group in groups for result in group.results for name in result.scores}
    return sorted(names, key=_order)


def _order(name: str) -> tuple[bool, int, bool, list[tuple[bool, int, str]]]:
    """Sort levels and exits by their numbers, exits behind all levels."""
    words = name.replace(",", "").split()
    place = SCORES.index(words[0]) if words[0] in SCORES else len(SCORES)
    numbers = [(not w.isdecimal(), int(w) if w.isdecimal() else 0, w) for w in words]
    return is_perplexity(name), place, "exit" in words, numbers
