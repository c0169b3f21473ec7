"""Collects runs' accuracy under serving settings: the cells of Table 1 of CIS.

A setting is the percentage of requests that each exit answers, such as 80-15-5. A run is trained
for one setting, its own (fleet.serving), and tested under several.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, stdev
from typing import Any

from inference.topology import Serving, TopologyError

SERVING = "fleet.serving"
"""The key of the setting that a run is trained for."""


@dataclass(frozen=True)
class UnderSettings:
    """A run's accuracy under each tested setting."""

    seed: str | None
    own: str | None
    """The setting that the run was trained for; None if nodes have rates of their own."""
    accuracies: Mapping[str, float]

    @classmethod
    def of(cls, seed: str | None, own: str | None, summary: Mapping[str, Any]) -> UnderSettings:
        """Return the accuracies in a run's summary; empty if its fleet is no system of nodes."""
        found = dict(summary.get("settings", {}))
        if own is not None and summary.get("cis") is not None:
            found.setdefault(own, summary["cis"])  # a setting that is not in the paper
        return cls(seed, own, found)


@dataclass(frozen=True)
class Cell:
    """The accuracy of runs under a setting, by seed."""

    by_seed: Mapping[str | None, float]
    own: bool
    """True if the runs were trained for this setting."""

    @property
    def mean(self) -> float:
        return fmean(self.by_seed.values())

    @property
    def deviation(self) -> float | None:
        """Standard deviation over the seeds; None for a single seed."""
        return stdev(self.by_seed.values()) if len(self.by_seed) > 1 else None

    @property
    def percents(self) -> str:
        """The mean in percent, with the deviation if there are several seeds."""
        beside = "" if self.deviation is None else f" ± {100 * self.deviation:.1f}"
        return f"{100 * self.mean:.1f}{beside}"


def cells_of(runs: Sequence[UnderSettings]) -> dict[str, Cell]:
    """Return the accuracies of runs that differ in their own setting and in their seed.

    A cell uses only the runs that were trained for its setting. It uses all runs if all have the
    same own setting, or if their results do not depend on it.
    """
    independent = _are_independent(runs)
    of_all = independent or len({run.own for run in runs}) == 1
    cells = {}
    for setting in sorted_settings(setting for run in runs for setting in run.accuracies):
        tested = [run for run in runs if setting in run.accuracies]
        own = [run for run in tested if run.own == setting and not independent]
        if chosen := own or (tested if of_all else []):
            by_seed = {run.seed: run.accuracies[setting] for run in chosen}
            cells[setting] = Cell(by_seed, own=bool(own))
    return cells


def _are_independent(runs: Sequence[UnderSettings]) -> bool:
    """Return whether runs of one seed have the same results for all own settings."""
    pairs = [
        (one.accuracies[setting], other.accuracies[setting])
        for one, other in combinations(runs, 2)
        if one.seed == other.seed and one.own != other.own
        for setting in one.accuracies.keys() & other.accuracies.keys()
    ]
    return bool(pairs) and all(one == other for one, other in pairs)


def best_of(cells: Sequence[Cell | None]) -> list[Cell]:
    """Return the cells of a column with the highest accuracy, as it is shown.

    The list is empty for a single cell, or if a row has no cell.
    """
    known = [cell for cell in cells if cell is not None]
    if len(known) < max(2, len(cells)):
        return []
    shown = [round(100 * cell.mean, 1) for cell in known]
    return [cell for cell, each in zip(known, shown, strict=True) if each == max(shown)]


def serving_of(setting: object) -> str | None:
    """Return a setting in the form of the records; None if it is no setting."""
    try:
        return str(Serving.read(str(setting)))
    except TopologyError:
        return None


def sorted_settings(settings: Iterable[str]) -> list[str]:
    """Return settings without repeats; those whose first exits answer the most come first."""
    return sorted(set(settings), key=lambda each: (_numbers(each), each), reverse=True)


def _numbers(setting: str) -> list[float]:
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", setting)]
