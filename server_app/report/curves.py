"""Accuracy as a run goes on, and against what an answer costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from markupsafe import Markup

from server_app.record.metrics import score_of
from server_app.report.amounts import amount, percent
from server_app.report.axes import ACCURACY, LOSS, PERPLEXITY, Scale
from server_app.report.charts import (
    Dot,
    Front,
    Series,
    front_chart,
    line_chart,
    thinned,
)
from server_app.report.grouping import Group, over_runs
from server_app.report.run_data import Spent
from training.perplexity import perplexity_of

SCALES: dict[Spent, Scale] = {
    "rounds": Scale("round", whole=True),
    "bytes": Scale("bytes sent, both ways", unit="B"),
    "seconds": Scale("seconds of all devices", unit="s"),
}
FEWEST_POINTS, MOST_POINTS = 10, 60
"""Of a line: more could not be told apart."""
ALL_POINTS = 5000
"""Of all lines, as far as that leaves each the fewest: the page is to stay below 1 MB."""
FEW = 8
FRONT_COLOUR = 7

Pick = Callable[[Mapping[str, Any]], float | None]
Line = tuple[int, str, Group, Pick]
"""A colour, a name, and whose values they are."""
Legend = list[tuple[int, str]]
"""Colours and what they stand for."""


@dataclass(frozen=True)
class Figure:
    """A chart under its title; by what was spent, where it can be drawn over several things."""

    title: str
    legend: Legend
    charts: Mapping[str, Markup]


def level_pick(level: str, score: str = "accuracy") -> Pick:
    """Return what finds a level's accuracy, or another score, in a round's line."""
    return lambda line: line.get("levels", {}).get(level, {}).get(score)


def exit_pick(level: str, unit: str) -> Pick:
    """Return what finds the accuracy of one of a level's exits."""
    return lambda line: (
        line.get("levels", {}).get(level, {}).get("exits", {}).get(unit, {}).get("accuracy")
    )


def score_pick(score: str) -> Pick:
    """Return what finds a score of the whole round, such as `worst`."""
    return lambda line: score_of(line, score)


def train_loss(line: Mapping[str, Any]) -> float | None:
    """Return the mean of the clients' losses in a round's training."""
    found: float | None = line.get("train", {}).get("loss")
    return found


def accuracy_figures(groups: Sequence[Group]) -> list[Figure]:
    """Return the curves: of one group's levels and exits, or of several groups' scores."""
    if len(groups) > 1:
        return _figures_of_groups(groups)
    (group,) = groups
    wanted: dict[str, list[Line]] = {}
    levels, exits = group.runs[0].levels, group.runs[0].exits
    wanted["All levels"] = [(number, f"level {level}", group, level_pick(level))
                            for number, level in enumerate(levels)]  # fmt: skip
    for level in levels:
        held = group.runs[0].summary["levels"][level].get("exits", {})
        if len(held) > 1:
            wanted[f"Exits of level {level}"] = [
                (exits.index(unit), f"exit {unit}", group, exit_pick(level, unit))
                for unit in sorted(held, key=exits.index)
            ]
    scores = ["mean", "worst", *group.runs[0].kinds, *group.runs[0].of_systems]
    wanted["Scores"] = [(n, score, group, score_pick(score)) for n, score in enumerate(scores)]
    return figures_of(wanted)


def perplexity_figures(groups: Sequence[Group]) -> list[Figure]:
    """Return the curves of language models: of one group's levels, or of several groups' means."""
    if len(groups) > 1:
        scores = {"mean of the levels": "mean", "clients' own level": "local"}
        wanted: dict[str, list[Line]] = {
            f"Perplexity: {title}": [
                (number, group.name, group, score_pick(perplexity_of(score)))
                for number, group in enumerate(groups)
            ]
            for title, score in scores.items()
        }
        return figures_of(wanted, PERPLEXITY)
    (group,) = groups
    name = perplexity_of("accuracy")
    lines: list[Line] = [
        (number, f"level {level}", group, level_pick(level, name))
        for number, level in enumerate(group.runs[0].levels)
    ]
    return figures_of({"Perplexity: all levels": lines}, PERPLEXITY)


def loss_figures(groups: Sequence[Group]) -> list[Figure]:
    """Return the curves of the loss: the levels' in tests, and the clients' mean in training.

    Of several groups it is that of training alone.
    """
    if len(groups) > 1:
        lines = [(number, group.name, group, train_loss) for number, group in enumerate(groups)]
        return figures_of({"Loss in training": lines}, LOSS)
    (group,) = groups
    levels = group.runs[0].levels
    tested: list[Line] = [(number, f"level {level}", group, level_pick(level, "loss"))
                          for number, level in enumerate(levels)]  # fmt: skip
    return figures_of({"Loss": [*tested, (len(levels), "in training", group, train_loss)]}, LOSS)


def _figures_of_groups(groups: Sequence[Group]) -> list[Figure]:
    runs = [run for group in groups for run in group.runs]
    kinds = list(dict.fromkeys(kind for run in runs for kind in run.kinds))
    levels = list(dict.fromkeys(level for run in runs for level in run.levels))
    wanted = {"Mean of the levels": score_pick("mean"), "Worst level": score_pick("worst")}
    wanted |= {f"Level {level}": level_pick(level) for level in levels}
    wanted |= {f"Clients' tests: {kind}": score_pick(kind) for kind in kinds}
    if any(run.of_systems for run in runs):
        wanted["Collaborative system"] = score_pick("cis")
    return figures_of(
        {
            title: [(n, group.name, group, pick) for n, group in enumerate(groups)]
            for title, pick in wanted.items()
        }
    )


def figures_of(wanted: Mapping[str, Sequence[Line]], y: Scale = ACCURACY) -> list[Figure]:
    """Draw lines under their titles; where nothing is known, there is no figure."""
    room = ALL_POINTS // max(1, sum(map(len, wanted.values())))
    most = max(FEWEST_POINTS, min(MOST_POINTS, room))
    figures = [_figure(title, lines, most, y) for title, lines in wanted.items()]
    return [figure for figure in figures if figure.charts]


def _figure(title: str, lines: Sequence[Line], most: int, y: Scale) -> Figure:
    charts, legend = dict[str, Markup](), Legend()
    for spent, scale in SCALES.items():
        drawn = [_series(*line, spent, most) for line in lines]
        series = [each for each in drawn if each.points]
        if series:
            told = f"{title}: {y.label} by {scale.label}"
            charts[spent] = line_chart(series, scale, told, y)
            legend = legend or [(each.colour, each.name) for each in series]
    return Figure(title, legend, charts)


def _series(colour: int, name: str, group: Group, pick: Pick, spent: Spent, most: int) -> Series:
    values = over_runs([run.curve(pick) for run in group.runs])
    places = over_runs([run.spent(spent) for run in group.runs])
    rounds = thinned([r for r in values if r in places], most)
    points = [(places[r].mean, values[r].mean) for r in rounds]
    ranged = any(values[r].high > values[r].low for r in rounds)
    band = [(places[r].mean, values[r].low, values[r].high) for r in rounds] if ranged else []
    return Series(name, colour, points, band)


def front_figure(groups: Sequence[Group]) -> Figure | None:
    """Return accuracy against the MACs of an answer; None where runs did not record these."""
    alone = len(groups) == 1
    fronts = []
    for number, group in enumerate(groups):
        dots = _dots(group, None if alone else number)
        if dots:
            fronts.append(Front(group.name, FRONT_COLOUR if alone else number, dots))
    if not fronts:
        return None
    scale = Scale("multiply-accumulates for one answer")
    title = "Accuracy against the cost of an answer"
    if alone:
        legend = [(n, f"level {level}") for n, level in enumerate(groups[0].runs[0].levels)]
    else:
        legend = [(front.colour, front.name) for front in fronts]
    return Figure(title, legend, {"macs": front_chart(fronts, scale, title)})


def _dots(group: Group, colour: int | None) -> list[Dot]:
    """Return a group's exits by cost; without a colour, each level has its own."""
    first, found = group.runs[0], []
    for number, level in enumerate(first.levels):
        tested, facts = first.summary["levels"][level], first.level_facts.get(level)
        if facts is None or "lack" in tested:
            continue
        for unit in tested.get("exits", {}):
            macs, own = facts["exit_macs"].get(unit), unit == str(facts["exits"][-1])
            # A level's own answer may be the ensemble of its exits.
            pick = level_pick(level) if own else exit_pick(level, unit)
            known = [value for run in group.runs if (value := pick(run.summary)) is not None]
            if macs is None or not known:
                continue
            what = f"level {level}" if own else f"exit {unit} of level {level}"
            prefix = f"{group.name}, " if colour is not None else ""
            text = f"{prefix}{what}: {percent(fmean(known))} for {amount(macs)} MACs"
            label = what if own and colour is None else ""
            tint = number if colour is None else colour
            found.append(Dot(macs, fmean(known), tint, text, label, min(known), max(known)))
        found += _budget_dots(group, level, number, colour)
    return found


def _budget_dots(group: Group, level: str, number: int, colour: int | None) -> list[Dot]:
    """Return what a level comes to under budgets, where easy inputs leave at its early exits."""
    runs = [points for run in group.runs if (points := run.budgets.get(level))]
    prefix = f"{group.name}, " if colour is not None else ""
    tint, found = number if colour is None else colour, []
    for same in zip(*runs, strict=False):  # by budget, which all seeds have in common
        accuracies = [point["accuracy"] for point in same]
        macs, mean = fmean(point["macs"] for point in same), fmean(accuracies)
        text = (
            f"{prefix}level {level} with a budget of {same[0]['budget']:.0%}: "
            f"{percent(mean)} for {amount(macs)} MACs"
        )
        low, high = min(accuracies), max(accuracies)
        found.append(Dot(macs, mean, tint, text, low=low, high=high, small=True))
    return found
