"""Reports unequal conditions between the methods of a comparison: costs, settings, steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from nestfl.comparing.results import Group, Result
from nestfl.comparing.trials import Trial, short_name
from server_app.config.composing import Config, plain
from server_app.config.saved import flat, that_matter
from server_app.report.grouping import METHODS_ASK_FOR, own_option

CostName = Literal["parameters", "macs", "bytes", "memory"]
COST_NAMES: dict[CostName, str] = {
    "parameters": "parameters",
    "macs": "MACs",
    "bytes": "bytes a round",
    "memory": "training memory",
}
A_METHODS_OWN = ("strategy.", *METHODS_ASK_FOR)
"""Settings in which methods may differ."""


@dataclass(frozen=True)
class LevelCost:
    """The costs of one level of a method on a device."""

    number: int
    parameters: int
    macs: int
    """MACs of a forward pass of one example."""
    bytes: int
    """Bytes of its tensors, down and up."""
    memory: int
    """Bytes of training: weights, gradients, the optimiser, a batch's activations."""


@dataclass(frozen=True)
class Costs:
    """A method's levels, under the name of the groups that have them."""

    name: str
    levels: tuple[LevelCost, ...]
    kind: CostName
    """The cost that the method's levels are planned by."""
    tolerance: float


def costs_of(name: str, config: Config) -> Costs | None:
    """Return the cost of a config's levels; None if they depend on the devices' own budgets."""
    from server_app.building import strategy_of
    from strategies.levels.cost import cost, training_memory

    if config.strategy.need_clients:
        return None
    made = strategy_of(config)
    levels = []
    for level in made.levels:
        form = made.submodels.at(level).form.values()
        found = cost(made.federation.task, level.slice, config.train.batch_size)
        size = sum(tensor.numel() * tensor.element_size() for tensor in form)
        memory = training_memory(found, config.train)
        levels.append(LevelCost(level.number, found.parameters, found.macs, 2 * size, memory))
    return Costs(name, tuple(levels), made.settings.cost, made.settings.tolerance)


def costs_of_rivals(trials: Sequence[Trial], configs: Sequence[Config]) -> list[list[Costs]]:
    """Return the cost of levels for each set of rivals, whose methods should cost the same.

    Sets with equal costs, such as those of other seeds, are merged.
    """
    by_name = dict(zip((trial.name for trial in trials), configs, strict=True))
    sets: dict[tuple[object, ...], list[Trial]] = {}
    for group in rivals(trials):
        counted = tuple(_what_costs(by_name[trial.name]) for trial in group)
        sets.setdefault(counted, group)
    found = []
    for group in sets.values():
        first = group[0].group
        shared = {k: v for k, v in first.items() if not _is_a_methods(k, first)}
        prefix = f"{short_name(shared)}: " if len(sets) > 1 and shared else ""
        costs = {}
        for trial in group:
            own = {k: v for k, v in trial.group.items() if _is_a_methods(k, trial.group)}
            config = by_name[trial.name]
            name = prefix + (short_name(own) or config.strategy.name)
            if (key := _what_costs(config)) not in costs:
                costs[key] = costs_of(name, config)
        found.append([each for each in costs.values() if each is not None])
    return [each for each in found if each]


def _what_costs(config: Config) -> tuple[object, ...]:
    """Return all settings that the cost of levels depends on."""
    train = config.train
    return config.strategy, config.task, train.batch_size, train.optimizer, train.momentum


def unequal_levels(methods: Sequence[Costs]) -> tuple[list[str], list[str]]:
    """Return warnings of levels whose costs should be equal but differ, and notes on other costs.

    Levels of the same number should be equal in the cost that the first method is planned by.
    """
    warnings: list[str] = []
    notes: list[str] = []
    for number in sorted({level.number for each in methods for level in each.levels}):
        holders = [(each, _level(each, number)) for each in methods if _level(each, number)]
        for kind, what in COST_NAMES.items():
            amounts = {each.name: getattr(level, kind) for each, level in holders}
            least, most = min(amounts, key=amounts.__getitem__), max(amounts, key=amounts.get)  # type: ignore[arg-type]
            ratio = amounts[most] / amounts[least]
            if ratio <= 1 + methods[0].tolerance:
                continue
            told = (
                f"level {number} of {most} has {ratio:.2f} times the {what} of {least} "
                f"({amounts[most]:,} and {amounts[least]:,})"
            )
            (warnings if kind == methods[0].kind else notes).append(told)
    return warnings, notes


def _level(costs: Costs, number: int) -> LevelCost | None:
    return next((level for level in costs.levels if level.number == number), None)


def rivals(trials: Iterable[Trial]) -> Iterator[list[Trial]]:
    """Yield the groups of trials that differ only in their method and its settings."""
    members: dict[tuple[tuple[str, str], ...], list[Trial]] = {}
    for trial in trials:
        choices = trial.choices
        shared = tuple(item for item in choices.items() if not _is_a_methods(item[0], choices))
        members.setdefault(shared, []).append(trial)
    yield from members.values()


def other_settings(trials: Sequence[Trial], configs: Sequence[Config]) -> list[str]:
    """Return the settings in which rivals differ, apart from methods' own."""
    values = dict(zip((trial.name for trial in trials), map(settings_of, configs), strict=True))
    warnings = []
    for group in rivals(trials):
        first = group[0]
        for other in group[1:]:
            ours, theirs = values[first.name], values[other.name]
            warnings += [
                f"{key} is {ours.get(key)} with {first}, but {theirs.get(key)} with {other}"
                for key in sorted(ours.keys() | theirs.keys())
                if not _is_a_methods(key) and ours.get(key) != theirs.get(key)
            ]
    return warnings


def other_steps(results: Sequence[Result]) -> list[str]:
    """Return the rounds in which rivals trained other clients or other numbers of examples."""
    by_name = {result.trial.name: result for result in results}
    warnings = []
    for group in rivals(result.trial for result in results):
        first = by_name[group[0].name]
        for other in (by_name[trial.name] for trial in group[1:]):
            different = [
                number
                for (number, ours), (_, theirs) in zip(first.steps(), other.steps(), strict=False)
                if ours != theirs
            ]
            if different or len(first.lines) != len(other.lines):
                where = f"in round {different[0]}" if different else "for as many rounds"
                warnings.append(
                    f"{first.trial} and {other.trial} did not train the same clients on the same "
                    f"number of examples {where}"
                )
    return warnings


def still_improving(groups: Sequence[Group], least: float) -> list[str]:
    """Return the runs that had not converged, and those for which it is not known."""
    warnings, unknown = [], []
    for result in (result for group in groups for result in group.results):
        if result.rise is None:
            unknown.append(result)
        elif result.rise > least:
            warnings.append(
                f"{result.trial} was still improving when it ended: the mean accuracy rose by "
                f"{100 * result.rise:.1f} points in the last fifth of its rounds"
            )
    if unknown:
        warnings.append(
            f"whether {len(unknown)} runs were still improving cannot be told: there were fewer "
            "than 3 tests in the last fifth of their rounds (evaluate.every)"
        )
    return warnings


def settings_of(config: Config) -> dict[str, Any]:
    """Return a configuration by full keys, without settings that change no result."""
    return that_matter(flat(plain(config)))


def _is_a_methods(key: str, choices: Mapping[str, str] = MappingProxyType({})) -> bool:
    own = own_option(key, choices) is not None
    return own or key == "strategy" or key.startswith(A_METHODS_OWN)
