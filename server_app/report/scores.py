"""Scores of runs: cards, tables and curves of accuracy, loss and perplexity, and the front."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import TypeVar

from markupsafe import Markup

from server_app.report.amounts import amount, duration, percent
from server_app.report.blocks import Block, Cards, Figures, Table, Text
from server_app.report.charts import (
    ACCURACY,
    LOSS,
    PERPLEXITY,
    Dot,
    Figure,
    Legend,
    Scale,
    Series,
    front_of,
    plot,
)
from server_app.report.grouping import Group, accuracies, all_of, mean_of, over_runs, perplexities
from server_app.report.run_data import Spent
from strategies.evaluation import worst_tenth
from training.perplexity import perplexity_of, shown

SCALES: dict[Spent, Scale] = {
    "rounds": Scale("round", "whole"),
    "bytes": Scale("bytes sent, both ways", unit="B"),
    "seconds": Scale("seconds of all devices", unit="s"),
}
OVERS = {"rounds": "by round", "bytes": "by bytes sent", "seconds": "by device seconds"}
FEWEST_POINTS, MOST_POINTS = 10, 60  # of a line: more could not be told apart
ALL_POINTS = 5000  # of all lines, but for the fewest of each: keeps the page below 1 MB
FRONT_COLOUR = 7
SCORE_NOTES = {
    "mean": "over the levels",
    "worst": "of the levels",
    "cis": "the collaborative system",
    "local": "own level on own data",
    "global": "full model on own data",
    "personal": "own training on own data",
    "validation": "own level on validation data",
}
KIND_NOTES = {
    "local": "local: each client's own level on its own test part, mean over the level's clients.",
    "global": "global: the same of the full model.",
    "personal": "personal: what each client has trained on its own test part, before it is "
    "averaged; attackers are left out.",
    "validation": "validation: as local, on the clients' validation parts.",
}
NO_FLEET = (
    "Not known: an older version of nestfl made this run, which did not record its levels and "
    "clients."
)

Path = tuple[str, ...]
"""Keys to a score in a round's line or a summary."""
Line = tuple[int, str, Group, Path]
"""A colour, a name, a group and the score that is drawn."""
Writer = Callable[[Sequence[float | None]], str]
"""Returns the text of a score of several runs."""
Item = TypeVar("Item")


def result_blocks(groups: Sequence[Group], tables: Sequence[Table] = ()) -> list[Block]:
    """Return the tables that were given, a group's cards, and the tables of scores."""
    at_best, alone = groups[0].runs[0].at_best, len(groups) == 1
    found: list[Block] = [*tables]
    if tables and at_best:
        found.append(Text("The tables above are of each run's last round; the scores below are "
                          "those after its best round by validation data.", "banner"))  # fmt: skip
    found += [Cards(cards_of(groups[0])), levels_table(groups[0])] if alone else []
    return [*found, *([] if alone else [groups_table(groups)]), *perplexity_tables(groups)]


def cards_of(group: Group) -> list[tuple[str, str, str]]:
    """Return the name, the value and a note of a group's scores, and of their costs."""
    runs, first = group.runs, group.runs[0]
    cards = [
        (score, percent(mean), SCORE_NOTES.get(score, "clients' tests"))
        for score in ("mean", "worst", *first.of_systems, *first.kinds)
        if (mean := mean_of(group.values(score))) is not None
    ]
    cards += [
        (f"{score} perplexity", shown(mean), SCORE_NOTES[score])
        for score in ("mean", "local")
        if (mean := mean_of(group.values(perplexity_of(score)))) is not None
    ]
    best = mean_of([run.best_mean for run in runs])
    if best is not None and not first.at_best:
        rounds = ", ".join(str(run.best_round) for run in runs)
        cards.append(("best", percent(best), f"mean after round {rounds}"))
    for kind in first.kinds[:1]:
        worst = mean_of([worst_tenth(run.scores(kind)[1].values()) for run in runs])
        if worst is not None:
            cards.append(("worst tenth", percent(worst), f"of clients, {kind}"))
    sent, seconds, macs = (
        mean_of([max(run.spent(what).values(), default=None) for run in runs])
        for what in ("bytes", "seconds", "macs")
    )
    cards.append(("bytes", amount(sent, "B"), "sent in training"))
    if seconds is not None:
        cards.append(("device time", duration(seconds), "of all clients"))
        cards.append(("MACs", amount(macs), "spent in training"))
    return cards


def levels_table(group: Group) -> Table:
    """Return the accuracy of each level and exit of a group's runs."""
    exits, kinds = all_of([run.exits for run in group.runs]), _kinds([group])
    start = any("start" in level for run in group.runs for level in run.summary["levels"].values())
    scores: dict[str, Path] = {"start": ("start",)} if start else {}
    scores |= {f"exit {unit}": ("exits", unit, "accuracy") for unit in exits}
    scores |= {"own answer": ("accuracy",)} | {kind: (kind,) for kind in kinds}
    notes = ["Exits are named by the unit that they follow; tested on the server's test set."]
    notes += [KIND_NOTES[kind] for kind in kinds if kind in KIND_NOTES]
    rows = _rows_of_levels(group, scores, accuracies)
    return Table("Accuracy of each level and exit", ["level", *scores], rows, notes)


def groups_table(groups: Sequence[Group]) -> Table:
    """Return the scores of all groups, one below the other."""
    systems = all_of([run.of_systems for group in groups for run in group.runs])
    scores: dict[str, Path] = {score: (score,) for score in ("mean", "worst", *systems)}
    scores |= _scores_of_groups(groups)
    rows = [[group.name, str(len(group.runs)), *_cells(group, scores, accuracies)]
            for group in groups]  # fmt: skip
    notes = ["The mean over a group's runs, which differ in their seed; from the lowest run to the "
             "highest in brackets."]  # fmt: skip
    return Table("Accuracy of each group", ["settings", "runs", *scores], rows, notes)


def perplexity_tables(groups: Sequence[Group]) -> list[Table]:
    """Return the perplexity of each level, or of several groups; none of other networks."""
    known = [mean_of(group.values(perplexity_of("mean"))) for group in groups]
    if not any(known):
        return []
    notes = ["The lower, the better. Of clients it is the mean of their own."]
    if len(groups) == 1:
        paths: dict[str, Path] = {"own answer": ("accuracy",)}
        scores = _perplexities_of(paths | {kind: (kind,) for kind in _kinds(groups)})
        rows = _rows_of_levels(groups[0], scores, perplexities)
        return [Table("Perplexity of each level", ["level", *scores], rows, notes)]
    paths = {score: (score,) for score in ("mean", "worst")}
    scores = _perplexities_of(paths | _scores_of_groups(groups))
    rows = [[group.name, *_cells(group, scores, perplexities)] for group in groups]
    return [Table("Perplexity of each group", ["settings", *scores], rows, notes)]


def _perplexities_of(paths: Mapping[str, Path]) -> dict[str, Path]:
    return {name: (*outer, perplexity_of(last)) for name, (*outer, last) in paths.items()}


def _scores_of_groups(groups: Sequence[Group]) -> dict[str, Path]:
    """Return the scores of clients' tests and of levels."""
    levels: dict[str, Path] = {f"level {n}": ("levels", n, "accuracy") for n in _levels(groups)}
    return {kind: (kind,) for kind in _kinds(groups)} | levels


def _rows_of_levels(group: Group, scores: Mapping[str, Path], write: Writer) -> list[list[str]]:
    return [[level_name(level, group), *_cells(group, scores, write, "levels", level)]
            for level in _levels([group])]  # fmt: skip


def _cells(group: Group, scores: Mapping[str, Path], write: Writer, *outer: str) -> list[str]:
    return [write(group.values(*outer, *path)) for path in scores.values()]


def level_name(level: str, group: Group) -> str:
    """Return a level's number, with the mark of a level without clients."""
    lack = group.runs[0].summary["levels"].get(level, {}).get("lack")
    return f"{level} ({lack})" if lack else level


def _levels(groups: Sequence[Group]) -> list[str]:
    return all_of([run.levels for group in groups for run in group.runs])


def _kinds(groups: Sequence[Group]) -> list[str]:
    return all_of([run.kinds for group in groups for run in group.runs])


def curve_blocks(groups: Sequence[Group]) -> list[Block]:
    """Return the curves of accuracy, perplexity and loss."""
    figures = [*accuracy_figures(groups), *perplexity_figures(groups), *loss_figures(groups)]
    if not figures:
        return [Text("No round has tested anything yet.")]
    overs = {over: told for over, told in OVERS.items() if any(over in f.charts for f in figures)}
    note = (
        "Tested on the server's test set; bytes are of training alone, both ways, and device "
        "seconds are the sum over all clients."
    )
    if sum(len(group.runs) for group in groups) > 1:
        note += " A line is the mean over seeds, the band goes from the lowest to the highest run."
    return [Figures(figures, [note], overs)]


def accuracy_figures(groups: Sequence[Group]) -> list[Figure]:
    """Return the curves of one group's levels and exits, or of several groups' scores."""
    levels, kinds = _levels(groups), _kinds(groups)
    if len(groups) > 1:
        paths: dict[str, Path] = {"Mean of the levels": ("mean",), "Worst level": ("worst",)}
        paths |= {f"Level {level}": ("levels", level, "accuracy") for level in levels}
        paths |= {f"Clients' tests: {kind}": (kind,) for kind in kinds}
        if any(run.of_systems for group in groups for run in group.runs):
            paths["Collaborative system"] = ("cis",)
        return _of_groups(groups, paths)
    (group,) = groups
    first = group.runs[0]
    wanted = {"All levels": _lines_of_levels(group, "accuracy")}
    for level in first.levels:
        held = first.summary["levels"][level].get("exits", {})
        if len(held) > 1:
            wanted[f"Exits of level {level}"] = [
                (n, f"exit {unit}", group, ("levels", level, "exits", unit, "accuracy"))
                for n, unit in enumerate(first.exits)
                if unit in held
            ]
    scores = ["mean", "worst", *first.kinds, *first.of_systems]
    wanted["Scores"] = [(n, score, group, (score,)) for n, score in enumerate(scores)]
    return figures_of(wanted)


def perplexity_figures(groups: Sequence[Group]) -> list[Figure]:
    """Return the curves of language models: of one group's levels, or of several groups' means."""
    if len(groups) == 1:
        lines = _lines_of_levels(groups[0], perplexity_of("accuracy"))
        return figures_of({"Perplexity: all levels": lines}, PERPLEXITY)
    scores = {"mean of the levels": "mean", "clients' own level": "local"}
    paths = {f"Perplexity: {title}": (perplexity_of(score),) for title, score in scores.items()}
    return _of_groups(groups, paths, PERPLEXITY)


def loss_figures(groups: Sequence[Group]) -> list[Figure]:
    """Return the curves of the loss: the levels' in tests, and the clients' mean in training.

    For several groups it is the training loss only.
    """
    path = ("train", "loss")
    if len(groups) > 1:
        return _of_groups(groups, {"Loss in training": path}, LOSS)
    tested = _lines_of_levels(groups[0], "loss")
    return figures_of({"Loss": [*tested, (len(tested), "in training", groups[0], path)]}, LOSS)


def _lines_of_levels(group: Group, score: str) -> list[Line]:
    return [(number, f"level {level}", group, ("levels", level, score))
            for number, level in enumerate(group.runs[0].levels)]  # fmt: skip


def _of_groups(
    groups: Sequence[Group], paths: Mapping[str, Path], y: Scale = ACCURACY
) -> list[Figure]:
    """Return a figure for each score, with a line for each group."""
    wanted: dict[str, list[Line]] = {
        title: [(number, group.name, group, path) for number, group in enumerate(groups)]
        for title, path in paths.items()
    }
    return figures_of(wanted, y)


def figures_of(wanted: Mapping[str, Sequence[Line]], y: Scale = ACCURACY) -> list[Figure]:
    """Draw lines under their titles; where nothing is known, there is no figure."""
    room = ALL_POINTS // max(1, sum(map(len, wanted.values())))
    most = max(FEWEST_POINTS, min(MOST_POINTS, room))
    figures = [_figure(title, lines, most, y) for title, lines in wanted.items()]
    return [figure for figure in figures if figure.charts]


def _figure(title: str, lines: Sequence[Line], most: int, y: Scale) -> Figure:
    charts, legend = dict[str, Markup](), Legend()
    for spent, scale in SCALES.items():
        series = [each for line in lines if (each := _series(*line, spent, most)).points]
        if series:
            told = f"{title}: {y.label} by {scale.label}"
            charts[spent] = plot(told, series, scale, y, pointed=True)
            legend = legend or [(each.colour, each.name) for each in series]
    return Figure(title, legend, charts)


def _series(colour: int, name: str, group: Group, path: Path, spent: Spent, most: int) -> Series:
    values = over_runs([run.curve(*path) for run in group.runs])
    places = over_runs([run.spent(spent) for run in group.runs])
    rounds = thinned([r for r in values if r in places], most)
    points = [(places[r].mean, values[r].mean) for r in rounds]
    ranged = any(values[r].high > values[r].low for r in rounds)
    band = [(places[r].mean, values[r].low, values[r].high) for r in rounds] if ranged else []
    dots = [Dot(*point, name, colour) for point in points] if len(points) <= 2 else []
    return Series(name, colour, points, band, dots)


def thinned(points: Sequence[Item], most: int) -> list[Item]:
    """Return at most so many of the points, with the first and the last."""
    if len(points) <= most:
        return list(points)
    last = len(points) - 1
    return [points[round(number * last / (most - 1))] for number in range(most)]


def cost_blocks(groups: Sequence[Group]) -> list[Block]:
    """Return accuracy against the MACs of an answer."""
    figure = front_figure(groups)
    if figure is None:
        return [Text(NO_FLEET)]
    note = (
        "A filled dot is on the front: nothing that costs as little is more accurate. Each level "
        "is a dot, and so is each early exit, as if all answers were taken there."
    )
    if any(run.budgets for group in groups for run in group.runs):
        note += (
            " Small dots are budgets: easy inputs leave early, by thresholds fitted to validation "
            "data."
        )
    return [Figures([figure], [note])]


def front_figure(groups: Sequence[Group]) -> Figure | None:
    """Return accuracy against the MACs of an answer; None where runs did not record these."""
    alone, title = len(groups) == 1, "Accuracy against the cost of an answer"
    fronts = [
        front_of(group.name, FRONT_COLOUR if alone else number, dots)
        for number, group in enumerate(groups)
        if (dots := _dots(group, None if alone else number))
    ]
    if not fronts:
        return None
    legend = [(front.colour, front.name) for front in fronts]
    if alone:
        legend = [(n, f"level {level}") for n, level in enumerate(groups[0].runs[0].levels)]
    chart = plot(title, fronts, Scale("multiply-accumulates for one answer"), room=0.06)
    return Figure(title, legend, {"macs": chart})


def _dots(group: Group, colour: int | None) -> list[Dot]:
    """Return a group's exits and budgets by cost; without a colour, each level has its own."""
    first, found = group.runs[0], list[Dot]()
    for number, level in enumerate(first.levels):
        tested, facts = first.summary["levels"][level], first.level_facts.get(level)
        if facts is None or "lack" in tested:
            continue
        tint = number if colour is None else colour
        prefix = "" if colour is None else f"{group.name}, "
        for unit in tested.get("exits", {}):
            macs, own = facts["exit_macs"].get(unit), unit == str(facts["exits"][-1])
            # A level's own answer may be the ensemble of its exits.
            path = ("accuracy",) if own else ("exits", unit, "accuracy")
            known = [each for each in group.values("levels", level, *path) if each is not None]
            if macs is not None and known:
                what = f"level {level}" if own else f"exit {unit} of level {level}"
                label = what if own and colour is None else ""
                found.append(_dot(macs, known, tint, f"{prefix}{what}", label))
        points = [each for run in group.runs if (each := run.budgets.get(level))]
        for same in zip(*points, strict=False):  # by budget, which all seeds have in common
            what = f"{prefix}level {level} with a budget of {same[0]['budget']:.0%}"
            macs_of_all = fmean(point["macs"] for point in same)
            shares = [point["accuracy"] for point in same]
            found.append(_dot(macs_of_all, shares, tint, what, radius=2.5))
    return found


def _dot(
    macs: float, known: Sequence[float], tint: int, what: str, label: str = "", radius: float = 4.0
) -> Dot:
    mean = fmean(known)
    told = f"{what}: {percent(mean)} for {amount(macs)} MACs"
    return Dot(macs, mean, told, tint, label, (min(known), max(known)), radius)
