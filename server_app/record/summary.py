"""Summarises a run at its end: a table for the terminal, and summary.json."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Required, TypedDict

from rich import box
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from protocol.documents import FINITE, read_json
from server_app.record.metrics import (
    BY_CLASS,
    LevelMetrics,
    PersonalMetrics,
    RoundMetrics,
    Seconds,
    score_of,
)
from server_app.record.run_record import RunRecord
from training.perplexity import perplexity_of, shown

ASK_SUMS = ("asked", "answered", "down", "up")
SCORES = ("worst", "mean", "cis", "local", "global", "personal", "validation")
PERPLEXITIES = {name: perplexity_of(name) for name in SCORES}
"""Names of language models' scores, beside those of the accuracies."""
BEST = ("round", *(name for score in ("validation", "worst", "mean", "cis")
                   for name in (score, PERPLEXITIES[score])))  # fmt: skip
"""Values of the best round in the summary."""
KEPT = {*SCORES, *PERPLEXITIES.values()}
PLAIN_WIDTH = 120
"""Columns of the table if the output is no terminal."""


class BudgetFacts(TypedDict):
    """A level's accuracy on an average budget, which inputs keep to by leaving at early exits."""

    budget: Annotated[float, FINITE]  # share of the MACs of always running to the end
    macs: Annotated[float, FINITE]  # mean per sample
    accuracy: Annotated[float, FINITE]  # on the server's test set, thresholds from validation data


# The functional form, because `global` is a keyword of Python.
Summary = TypedDict(
    "Summary",
    {
        "rounds": Required[int],
        "levels": Required[dict[str, LevelMetrics]],
        "seconds": Seconds,
        "bytes": dict[str, int],
        "settings": dict[str, float],  # accuracy by serving setting
        "best": dict[str, float],  # scores after the best round
        "budgets": dict[str, list[BudgetFacts]],  # by level
        "worst": float,
        "mean": float,
        "cis": float,
        "local": float,
        "global": float,
        "personal": float,
        "validation": float,
        "worst_perplexity": float,
        "mean_perplexity": float,
        "cis_perplexity": float,
        "local_perplexity": float,
        "global_perplexity": float,
        "personal_perplexity": float,
        "validation_perplexity": float,
    },
    total=False,
)
"""The content of summary.json that its readers rely on; `summarise` makes it."""


def read_summary(file: Path) -> Mapping[str, Any]:
    """Return the content of summary.json; `FileNotFoundError` if the run has not finished."""
    found: Mapping[str, Any] = read_json(file, Summary)
    return found


def summarise(
    lines: Sequence[RoundMetrics], best: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Sum costs over all rounds; keep the newest value of each score, and the start's scores.

    `best` has the metrics of the round whose checkpoint is kept as the best.
    """
    clients: list[Any] = [line.get("clients", {}) for line in lines]
    asked: list[Any] = [each for line in lines for each in line.get("asked", {}).values()]
    forgot = sum(counts.get("forgot", 0) for counts in clients)
    summary: dict[str, Any] = {
        "rounds": lines[-1]["round"] if lines else 0,
        "seconds": sum(line.get("seconds", 0.0) for line in lines),
        "bytes": _added(dict(line.get("bytes", {})) for line in lines),
        "clients": {
            "sampled": sum(counts.get("sampled", 0) for counts in clients),
            "replied": sum(counts.get("replied", 0) for counts in clients),
            "refused": _added(counts.get("refused", {}) for counts in clients),
            "failed": _added(counts.get("failed", {}) for counts in clients),
            **({"forgot": forgot} if forgot else {}),
        },
        "asked": {
            **{key: sum(each.get(key, 0) for each in asked) for key in ASK_SUMS},
            "refused": _added(each.get("refused", {}) for each in asked),
            "failed": _added(each.get("failed", {}) for each in asked),
        },
        "levels": {},
    }
    for line in lines:
        scores = {name: score_of(line, name) for name in KEPT}
        summary |= {name: value for name, value in scores.items() if value is not None}
        if settings := line.get("settings"):
            summary["settings"] = settings
        if worst := line.get("worst_tenth"):
            summary["worst_tenth"] = {**summary.get("worst_tenth", {}), **worst}
        if tested := _tested(line):
            summary["tested"] = {**summary.get("tested", {}), **tested}
        _add_personal(summary, line.get("personal", {}))
        for level, metrics in line.get("levels", {}).items():
            known = summary["levels"].setdefault(level, {})
            if "accuracy" in metrics:
                known.pop("lack", None)  # clients of this level may have come since
            known.update({key: each for key, each in metrics.items() if key not in BY_CLASS})
            if line["round"] == 0:
                known["start"] = metrics.get("accuracy")
    if best is not None:
        summary["best"] = {name: best[name] for name in BEST if best.get(name) is not None}
    return summary


def _tested(line: RoundMetrics) -> dict[str, dict[str, int]]:
    """Return the number of clients behind each client score, and the number of all candidates."""
    scores, found = line.get("scores", {}), {}
    for kind, counts in line.get("asked", {}).items():
        if kind in scores or "without" in counts:
            of = counts.get("asked", 0) + counts.get("without", 0)
            found[kind] = {"clients": len(scores.get(kind, {})), "of": of}
    if own := line.get("personal", {}).get("scores"):
        found["personal"] = {"clients": len(own), "of": line.get("clients", {}).get("sampled", 0)}
    return found


def _add_personal(summary: dict[str, Any], personal: PersonalMetrics) -> None:
    """Keep each level's personal accuracy, and its perplexity if there is one."""
    name = perplexity_of("personal")
    if personal.get("perplexity") is not None:
        summary[name] = personal["perplexity"]
    for level, found in personal.get("levels", {}).items():
        known = summary["levels"].setdefault(level, {})
        known["personal"] = found.get("accuracy")
        if "perplexity" in found:
            known[name] = found["perplexity"]


def epoch_macs(line: RoundMetrics, epochs: int) -> dict[str, float]:
    """Return the forward MACs of one of a round's local epochs, by level."""
    from strategies.levels.cost import TRAINING_PASSES  # loads torch, which `show` does without

    slices: Mapping[str, Mapping[str, Any]] = line.get("slices", {})
    passes = TRAINING_PASSES * epochs
    return {level: each["macs"] / passes for level, each in slices.items() if "macs" in each}


def mace(lines: Iterable[RoundMetrics], epochs: int) -> float | None:
    """Return the MACs of one local epoch of a round's clients, the mean over the rounds.

    They count as in FedFA (section 5.2): one forward pass of all examples of these clients, of
    training steps that take three. None where no MACs are recorded.
    """
    found = [sum(each.values()) for line in lines if (each := epoch_macs(line, epochs))]
    return fmean(found) if found else None


def show(record: RunRecord, summary: Mapping[str, Any], console: Console | None = None) -> None:
    """Print the table and the paths of the results; for a file or a pipe in plain text."""
    console = console or Console()
    if not console.is_terminal:
        console = Console(file=console.file, width=PLAIN_WIDTH, color_system=None)
    if summary["levels"]:
        console.print(_table(summary["levels"], plain=not console.is_terminal))
    for line in _totals(summary):
        console.print(line, highlight=False, markup=False)
    for what, path in {
        "run": record.directory,
        "metrics": record.metrics_file,
        "checkpoints": record.checkpoints,
        "tensorboard": record.tensorboard,
        "report": record.report_file,
    }.items():
        if path.exists():
            console.print(f"{what + ':':13}{path}", highlight=False, markup=False, soft_wrap=True)


def _table(levels: Mapping[str, Any], plain: bool) -> Table:
    exits = sorted({unit for level in levels.values() for unit in level.get("exits", {})}, key=int)
    on_clients = [score for score in ("local", "global", "personal") if _any_has(levels, score)]
    start = ["start"] if _any_has(levels, "start") else []
    perplexities = [perplexity_of(score) for score in ("accuracy", *on_clients)]
    perplexities = [name for name in perplexities if _any_has(levels, name)]
    table = Table(box=None if plain else box.SIMPLE_HEAD)
    names = (*start, *(f"exit {unit}" for unit in exits), "accuracy", *on_clients, *perplexities)
    for column in ("level", *(name.replace("_", " ") for name in names)):
        table.add_column(column, justify="right")
    for number in sorted(levels, key=_by_number):
        level = levels[number]
        by_exit = [level.get("exits", {}).get(unit, {}).get("accuracy") for unit in exits]
        at_start = [level.get(score) for score in start]
        scores = [level.get(score) for score in ("accuracy", *on_clients)]
        cells = [*map(_percent, (*at_start, *by_exit, *scores))]
        cells += [shown(level.get(name)) for name in perplexities]
        table.add_row(f"{level.get('lack', '')} {number}".strip(), *cells)
    return table


def _totals(summary: Mapping[str, Any]) -> Iterable[str]:
    if scores := _scores(summary):
        yield f"accuracy:    {scores}"
    if perplexities := _perplexities(summary):
        yield f"perplexity:  {perplexities}"
    if worst := summary.get("worst_tenth"):
        yield f"worst tenth: of clients {_scores(worst)}"
        if perplexities := _perplexities(worst):
            yield f"             perplexity {perplexities}"
    if tested := summary.get("tested"):
        counts = [f"{kind} {each['clients']} of {each['of']}" for kind, each in tested.items()]
        yield f"clients:     that were tested: {', '.join(counts)}"
    if best := summary.get("best"):
        yield f"best:        after round {best['round']}: {_scores(best)}"
        if perplexities := _perplexities(best):
            yield f"             perplexity {perplexities}"
    if lacking := [number for number, level in summary["levels"].items() if "lack" in level]:
        yield f"left out:    level {', '.join(lacking)} of worst and mean, for no client holds it"
    if measured := summary.get("measured_budgets"):
        least, most = min(measured.values()), max(measured.values())
        yield f"budgets:     {len(measured)} clients measured theirs: {least:.3g} to {most:.3g}"
    clients, asked, traffic = summary["clients"], summary["asked"], summary["bytes"]
    yield f"time:        {summary['rounds']} rounds in {summary['seconds']:.1f} s"
    yield f"bytes:       {decimal(traffic.get('down', 0))} down, {decimal(traffic.get('up', 0))} up"
    lost = [*_lost(clients, "refused"), *_lost(clients, "failed")]
    lost += [f"{clients['forgot']} had lost what they remember"] if "forgot" in clients else []
    yield ", ".join([f"replies:     {clients['replied']} of {clients['sampled']}", *lost])
    if asked["asked"]:
        answers = f"tests:       {asked['answered']} of {asked['asked']} answered"
        lost = [*_lost(asked, "refused"), *_lost(asked, "failed")]
        yield ", ".join([answers, *lost, f"{decimal(asked['down'])} down"])


def _scores(found: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_percent(found[name])}" for name in SCORES if name in found)


def _perplexities(found: Mapping[str, Any]) -> str:
    known = {score: found.get(name) for score, name in PERPLEXITIES.items()}
    return ", ".join(f"{score} {shown(each)}" for score, each in known.items() if each is not None)


def _lost(counts: Mapping[str, Any], what: str) -> list[str]:
    return [f"{count} {what} ({reason})" for reason, count in counts.get(what, {}).items()]


def _any_has(levels: Mapping[str, Any], score: str) -> bool:
    return any(level.get(score) is not None for level in levels.values())


def _added(counts: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return dict(total)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.2%}"


def _by_number(name: str) -> tuple[bool, int, str]:
    """Return a key that sorts levels by number; other names come after them."""
    return not name.isdecimal(), int(name) if name.isdecimal() else 0, name
