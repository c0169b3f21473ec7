"""Groups runs that differ only in their seed, and names each group by its distinct settings."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from server_app.config.saved import flat, that_matter
from server_app.report.amounts import percent
from server_app.report.run_data import Curve, RunData, by_number
from training.perplexity import shown

SEED = "seed"
SAID_ALONE = ("strategy", "model", "dataset", "experiment")  # named by their values alone
METHODS_ASK_FOR = ("model.norm", "model.scaler", "model.steps", "model.head")
"""Settings that come with a method."""
ABSENT = "-"  # stands for a value that is not there


@dataclass(frozen=True)
class Group:
    """Runs of the same settings with different seeds."""

    name: str
    runs: Sequence[RunData]

    @property
    def recorded(self) -> RunData | None:
        """The first run that recorded its fleet; an older version did not."""
        return next((run for run in self.runs if run.fleet), None)

    def values(self, *path: str) -> list[float | None]:
        """Return each run's newest score at a path of keys, such as levels, 1, accuracy."""
        return [run.value(*path) for run in self.runs]


def mean_of(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values that are known."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def accuracies(values: Sequence[float | None]) -> str:
    """Return a group's accuracy: the mean, and of several runs the lowest and the highest."""
    return _over_runs(values, lambda share: f"{100 * share:.1f}", percent, " %")


def perplexities(values: Sequence[float | None]) -> str:
    """Return a group's perplexity: the mean, and of several runs the lowest and the highest."""
    return _over_runs(values, shown, shown)


def _over_runs(
    values: Sequence[float | None],
    one_of: Callable[[float], str],
    alone: Callable[[float], str],
    unit: str = "",
) -> str:
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return alone(known[0]) if known else ABSENT
    mean, low, high = map(one_of, (fmean(known), min(known), max(known)))
    return f"{mean} ({low} to {high}){unit}"


def all_of(lists: Sequence[Sequence[str]]) -> list[str]:
    """Return the names in several lists, once each: numbers in order, other names as they come."""
    names = list(dict.fromkeys(name for each in lists for name in each))
    return sorted(names, key=by_number) if any(name.isdecimal() for name in names) else names


@dataclass(frozen=True)
class Spread:
    """A value over the runs of a group: its mean, its lowest and its highest value."""

    mean: float
    low: float
    high: float


def over_runs(curves: Sequence[Curve]) -> dict[int, Spread]:
    """Return the mean and the range of several runs' curves, for the rounds that all have."""
    rounds = set.intersection(*(set(curve) for curve in curves)) if curves else set()
    found = {}
    for number in sorted(rounds):
        values = [curve[number] for curve in curves]
        found[number] = Spread(fmean(values), min(values), max(values))
    return found


def grouped(
    runs: Sequence[RunData],
    labels: Mapping[Path, Mapping[str, str]] | None = None,
    besides: Collection[str] = (),
) -> list[Group]:
    """Return the groups of runs, by their labels where given, else by their configs.

    Runs of one group may differ in the keys `besides`, as in their seeds.
    """
    known = {path.resolve(): dict(choices) for path, choices in (labels or {}).items()}
    chosen = [known.get(run.directory) or settings(run.config) for run in runs]
    differing = [key for key in differences(chosen) if key not in besides]
    names = [_name(choices, differing, chosen) for choices in chosen]
    groups: dict[str, list[RunData]] = {}
    for name, run in zip(names, runs, strict=True):
        groups.setdefault(name, []).append(run)
    if len(groups) == 1:
        return [Group(name or runs[0].name, list(runs)) for name in groups]
    return [Group(name, members) for name, members in groups.items()]


def settings(config: Mapping[str, Any]) -> dict[str, str]:
    """Return a config as texts by whole keys, without those that change no result."""
    return {key: _text(value) for key, value in that_matter(flat(config)).items()}


def differences(chosen: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the keys, but for seeds, in which some differ, in their order."""
    keys = dict.fromkeys(key for choices in chosen for key in choices)
    return [
        key
        for key in keys
        if key.rpartition(".")[2] != SEED and len({c.get(key, ABSENT) for c in chosen}) > 1
    ]


def _name(
    choices: Mapping[str, str], differing: Sequence[str], chosen: Sequence[Mapping[str, str]]
) -> str:
    """Name a group by its settings: where another method was chosen, not by all that it brings."""
    parts = []
    strategies = {each.get("strategy") for each in chosen}
    for key in differing:
        group, _, rest = key.partition(".")
        if rest and group in strategies:  # of one strategy of a comparison
            if key in choices:
                parts.append(in_short(rest, choices[key]))
            continue
        name = "strategy.name" if key in METHODS_ASK_FOR else f"{group}.name"
        if rest and key != name and name in differing:
            alike = [c for c in chosen if c.get(name) == choices.get(name)]
            if len({c.get(key, ABSENT) for c in alike}) == 1:
                continue
        parts.append(in_short(group if rest == "name" else key, choices.get(key, ABSENT)))
    return " ".join(parts)


def own_option(key: str, choices: Mapping[str, str]) -> str | None:
    """Return the option that a comparison's key sets for the chosen strategy alone: beta of
    nefl.beta; None for all other keys.
    """
    strategy, _, option = key.partition(".")
    return option or None if strategy == choices.get("strategy") else None


def in_short(key: str, value: str) -> str:
    """Return a choice in short: the value alone of a strategy, a model, a data set."""
    return value if key in SAID_ALONE else f"{key}={value}"


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_text, value))}]"
    return (
        "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    )
