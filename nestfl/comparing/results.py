"""Reads the results of a comparison's finished runs from their records.

The results include no times, so the same runs give the same table on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from nestfl.comparing.trials import Trial, short_name
from server_app.record.files import METRICS_FILE, SUMMARY_FILE
from server_app.record.metrics import RoundMetrics, read_metrics, score_of
from server_app.record.serving_settings import UnderSettings
from server_app.record.summary import mace, read_summary
from training.perplexity import PERPLEXITY, is_perplexity, perplexity_of

SCORES = ("worst", "mean", "cis", "local", "global", "personal", "best")
"""Scores over all levels. cis is the accuracy of the fleet's nodes as one collaborative system,
personal that of the clients' trained slices before averaging, and best the mean after the best
round on validation data."""
FULL_MODEL = "full model"
"""Name of the last level's accuracy, for methods that have other levels."""
TARGETS = {
    "mean": "mean accuracy of the levels",
    "worst": "worst accuracy of the levels",
    FULL_MODEL: "accuracy of the full model",
    "cis": "accuracy of the collaborative system",
    "local": "local accuracy",
    "personal": "personal accuracy",
}
"""The scores that can have a target, with their descriptions."""
ALL_RUNS = "all runs"
"""Name of a group without choices."""
LAST_PART = 5
"""A run counts as still improving by the last 1 / LAST_PART of its rounds."""
FEWEST_TESTS = 3
"""Least tests of all levels for a slope."""
IMPROVING = 0.01
"""Least rise of the mean accuracy over that part of a run that still improves."""


@dataclass(frozen=True)
class Target:
    """An accuracy that training should reach."""

    share: float | None = None
    """The accuracy as a share; None: it is chosen from the results."""
    score: str = "mean"
    """Name of the accuracy; one of `TARGETS`."""

    def __str__(self) -> str:
        return f"{100 * (self.share or 0):.1f} % {TARGETS[self.score]}"


@dataclass(frozen=True, eq=False)
class Result:
    """A finished run: its scores and its rounds."""

    trial: Trial
    directory: Path
    summary: Mapping[str, Any]
    lines: Sequence[RoundMetrics]
    epochs: int = 1
    """Local epochs of a client in a round."""
    serving: str | None = None
    """The serving setting that the run was trained for, if any."""

    @classmethod
    def read(
        cls, trial: Trial, directory: Path, epochs: int, serving: str | None = None
    ) -> Result | None:
        """Return a run's result; None if it has not finished."""
        try:
            summary = read_summary(directory / SUMMARY_FILE)
        except FileNotFoundError:
            return None
        lines = read_metrics(directory / METRICS_FILE)
        return cls(trial, directory, summary, lines, epochs, serving)

    @cached_property
    def scores(self) -> dict[str, float]:
        """Its final accuracies by name: those of all levels, then each level's and each exit's.

        A language model also has perplexities: "mean perplexity".
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
    def under_settings(self) -> UnderSettings:
        """Its accuracy under serving settings."""
        return UnderSettings.of(self.trial.seed, self.serving, self.summary)

    @property
    def full_model(self) -> float | None:
        """The accuracy of the last level."""
        return self.scores.get(f"level {self._last_level}")

    @cached_property
    def _last_level(self) -> str | None:
        numbers = [name for name in self.summary["levels"] if name.isdecimal()]
        return max(numbers, key=int, default=None)

    @property
    def curve(self) -> list[tuple[int, float]]:
        """The mean accuracy of all levels, by the round of the test."""
        return [
            (line["round"], line["mean"]) for line in self.lines if line.get("mean") is not None
        ]

    @property
    def rise(self) -> float | None:
        """Rise of the mean accuracy in the last fifth of the rounds, by a straight line.

        The line goes through the tests in that fifth, but at least the last three; it is None if
        there were fewer than three.
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

    def spent_until(self, target: Target) -> Spent | None:
        """Return the costs of training until an accuracy reached its target; None if never."""
        spent = Spent(0, 0, 0)
        for line in self.lines:
            spent = spent.with_round(line)
            found = self._score(line, target.score)
            if found is not None and target.share is not None and found >= target.share:
                return spent
        return None

    def _score(self, line: RoundMetrics, score: str) -> float | None:
        """Return an accuracy after a round; None if it was not tested."""
        if score != FULL_MODEL:
            return score_of(line, score)
        return line.get("levels", {}).get(self._last_level or "", {}).get("accuracy")

    def computation(self, target: Target) -> Computation | None:
        """Return the clients' computation until a target; None if MACs are not recorded."""
        in_an_epoch, spent = mace(self.lines, self.epochs), self.spent_until(target)
        if in_an_epoch is None or spent is None:
            return None if in_an_epoch is None else Computation(in_an_epoch)
        epochs = spent.rounds * self.epochs
        return Computation(in_an_epoch, epochs, in_an_epoch * epochs)

    def steps(self) -> Iterator[tuple[int, Mapping[str, int]]]:
        """Yield for each round the clients that trained, with their numbers of examples."""
        for line in self.lines:
            trained: Mapping[str, Any] = line.get("trained", {})
            yield line["round"], {client: each["examples"] for client, each in trained.items()}


@dataclass(frozen=True)
class Spent:
    """Costs of training: rounds, bytes both ways, and multiply-accumulates on all devices."""

    rounds: int
    bytes: int
    macs: int

    def with_round(self, line: RoundMetrics) -> Spent:
        """Return the costs with one more round."""
        traffic = line.get("bytes", {})
        macs = sum(part.get("macs", 0) for part in line.get("slices", {}).values())
        sent = traffic.get("down", 0) + traffic.get("up", 0)
        return Spent(line["round"], self.bytes + sent, self.macs + macs)


@dataclass(frozen=True)
class Computation:
    """The clients' computation in MACs of forward passes, as in Table 2 of FedFA."""

    mace: float
    """MACs of one local epoch of all clients of a round, averaged over all rounds."""
    epochs: float | None = None
    """T·E: rounds until the target times local epochs; None if it was not reached."""
    tmac: float | None = None
    """MACs until the target: mace times epochs."""


@dataclass(frozen=True, eq=False)
class Group:
    """Runs that differ only in their seed."""

    choices: Mapping[str, str]
    results: tuple[Result, ...]

    @property
    def name(self) -> str:
        """Its choices in short form."""
        return short_name(self.choices) or ALL_RUNS

    def values(self, score: str) -> dict[str | None, float]:
        """Return a score by seed, of the runs that have it."""
        found = {
            each.trial.seed: each.full_model if score == FULL_MODEL else each.scores.get(score)
            for each in self.results
        }
        return {seed: value for seed, value in found.items() if value is not None}

    def computation(self, target: Target) -> Computation | None:
        """Return the means over its runs: MACE of all, the rest of runs that reached the target.

        It is None if no MACs are recorded.
        """
        found = [each for run in self.results if (each := run.computation(target))]
        if not found:
            return None
        epochs = [each.epochs for each in found if each.epochs is not None]
        tmacs = [each.tmac for each in found if each.tmac is not None]
        return Computation(
            fmean(each.mace for each in found),
            fmean(epochs) if epochs else None,
            fmean(tmacs) if tmacs else None,
        )


def grouped(results: Sequence[Result]) -> list[Group]:
    """Return the groups of results, in the order of their first one."""
    members: dict[tuple[tuple[str, str], ...], list[Result]] = {}
    for result in results:
        members.setdefault(tuple(result.trial.group.items()), []).append(result)
    return [Group(dict(choices), tuple(each)) for choices, each in members.items()]


def score_names(groups: Sequence[Group]) -> list[str]:
    """Return the names of all runs' scores: those of all levels, then each level and exit.

    Perplexities come after the accuracies.
    """
    names = {name for group in groups for result in group.results for name in result.scores}
    return sorted(names, key=_order)


def _order(name: str) -> tuple[bool, int, bool, list[tuple[bool, int, str]]]:
    """Return a key that sorts levels and exits by number, exits after all levels."""
    words = name.replace(",", "").split()
    place = SCORES.index(words[0]) if words[0] in SCORES else len(SCORES)
    numbers = [(not w.isdecimal(), int(w) if w.isdecimal() else 0, w) for w in words]
    return is_perplexity(name), place, "exit" in words, numbers
