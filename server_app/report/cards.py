"""The numbers that stand out at the top of a report: a group's scores, and what they took."""

from __future__ import annotations

from dataclasses import dataclass

from server_app.report.amounts import amount, duration, percent
from server_app.report.grouping import Group
from strategies.evaluation import worst_tenth
from training.perplexity import perplexity_of, shown


@dataclass(frozen=True)
class Card:
    """A number that stands out."""

    name: str
    value: str
    note: str = ""


def cards_of(group: Group) -> list[Card]:
    """Return a group's scores, and what they took."""
    runs = group.runs
    notes = {
        "mean": "over the levels",
        "worst": "of the levels",
        "cis": "the collaborative system",
        "local": "own level on own data",
        "global": "full model on own data",
        "personal": "own training on own data",
        "validation": "own level on validation data",
    }
    cards = [
        Card(score, percent(group.mean([run.summary.get(score) for run in runs])),
             notes.get(score, "clients' tests"))
        for score in ("mean", "worst", *runs[0].of_systems, *runs[0].kinds)
        if any(run.summary.get(score) is not None for run in runs)
    ]  # fmt: skip
    for score in ("mean", "local"):
        perplexities = group.mean([run.summary.get(perplexity_of(score)) for run in runs])
        if perplexities is not None:
            cards.append(Card(f"{score} perplexity", shown(perplexities), notes[score]))
    best = [run.best_mean for run in runs]
    if any(value is not None for value in best) and not runs[0].at_best:
        rounds = ", ".join(str(run.best_round) for run in runs)
        cards.append(Card("best", percent(group.mean(best)), f"mean after round {rounds}"))
    for kind in runs[0].kinds[:1]:
        worst = [worst_tenth(run.scores(kind)[1].values()) for run in runs]
        if any(value is not None for value in worst):
            cards.append(Card("worst tenth", percent(group.mean(worst)), f"of clients, {kind}"))
    spent = {what: [max(run.spent(what).values(), default=None) for run in runs]
             for what in ("bytes", "seconds", "macs")}  # fmt: skip
    means = {what: group.mean(values) for what, values in spent.items()}
    cards.append(Card("bytes", amount(means["bytes"], "B"), "sent in training"))
    if means["seconds"] is not None:
        cards.append(Card("device time", duration(means["seconds"]), "of all clients"))
        cards.append(Card("MACs", amount(means["macs"]), "spent in training"))
    return cards
