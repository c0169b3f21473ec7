"""A round in one line, for a terminal and for the server's log."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from server_app.record.metrics import score_of
from training.perplexity import perplexity_of, shown


def round_line(record: Mapping[str, Any], rounds: int | None) -> str:
    """Tell a round's number, replies, loss, accuracies and time, as far as its record has them."""
    parts = [f"round {record.get('round')}/{rounds or '?'}"]
    if isinstance(clients := record.get("clients"), Mapping):
        parts.append(f"{clients.get('replied')}/{clients.get('sampled')} replies")
        lost = {fault: _count(clients.get(fault)) for fault in ("refused", "failed")}
        parts += [f"{number} {fault}" for fault, number in lost.items() if number]
    parts += [loss_part(record), personal_part(record), accuracies_part(accuracies_of(record))]
    parts += [system_part(record), perplexities_part(record), tested_loss_part(record)]
    parts.append(validation_part(record))
    if isinstance(seconds := record.get("seconds"), (int, float)):
        parts.append(f"{seconds:.1f} s")
    return ", ".join(filter(None, parts))


def work_line(round: int, what: str, done: int, of: int, loss: float | None) -> str:
    """Tell how far the server is with work of its own, and the loss of the round's training."""
    return ", ".join(filter(None, (f"round {round}", _loss(loss), f"{what}: step {done} of {of}")))


def answers_line(round: int, what: str, done: int, of: int) -> str:
    """Tell how many of a round's questions besides training, such as tests, are answered."""
    return f"round {round}, {what}: {done} of {of} answered"


def loss_part(record: Mapping[str, Any]) -> str:
    """Tell the mean of the clients' losses; nothing where none was told."""
    train = record.get("train")
    return _loss(train.get("loss")) if isinstance(train, Mapping) else ""


def tested_loss_part(record: Mapping[str, Any]) -> str:
    """Tell the mean loss of the levels that clients hold; nothing where they were not tested."""
    levels = record.get("levels")
    found = levels.values() if isinstance(levels, Mapping) else ()
    held = [each for each in found if isinstance(each, Mapping) and "lack" not in each]
    losses = [math.nan if each["loss"] is None else each["loss"] for each in held if "loss" in each]
    return f"test {_loss(fmean(losses))}" if losses else ""


def _loss(loss: object) -> str:
    return f"loss {loss:.4g}" if isinstance(loss, (int, float)) else ""


def personal_part(record: Mapping[str, Any]) -> str:
    """Tell how good what clients have trained is on their own; nothing where it was not tested."""
    score = score_of(record, "personal")
    return f"personal {100 * score:.1f} %" if score is not None else ""


def accuracies_part(accuracies: Mapping[str, float]) -> str:
    """Tell the levels' accuracies; nothing where the round had no test."""
    shown = [f"{level}: {100 * accuracy:.1f} %" for level, accuracy in accuracies.items()]
    return "accuracy of level " + ", ".join(shown) if shown else ""


def system_part(record: Mapping[str, Any]) -> str:
    """Tell how good the collaborative system is; nothing where the fleet is none."""
    score = score_of(record, "cis")
    return f"system accuracy {100 * score:.1f} %" if score is not None else ""


def perplexities_part(record: Mapping[str, Any]) -> str:
    """Tell the levels' perplexities; nothing where it is no language model."""
    name = perplexity_of("accuracy")
    found = [f"{level}: {shown(value)}" for level, value in _scores_of(record, name).items()]
    return "perplexity of level " + ", ".join(found) if found else ""


def validation_part(record: Mapping[str, Any]) -> str:
    """Tell the score that rounds are compared by; nothing where clients did not validate."""
    score, perplexity = record.get("validation"), record.get(perplexity_of("validation"))
    if not isinstance(score, (int, float)):
        return ""
    beside = f" and {shown(perplexity)}" if isinstance(perplexity, (int, float)) else ""
    return f"validation {100 * score:.1f} %{beside}"


def accuracies_of(record: Mapping[str, Any]) -> dict[str, float]:
    """Return each level's accuracy in a round's record; none where it was not evaluated.

    A level that nobody holds is marked: "4 (untrained)".
    """
    return _scores_of(record, "accuracy")


def _scores_of(record: Mapping[str, Any], score: str) -> dict[str, float]:
    levels = record.get("levels")
    if not isinstance(levels, Mapping):
        return {}
    return {
        f"{level} ({values['lack']})" if "lack" in values else str(level): float(values[score])
        for level, values in levels.items()
        if isinstance(values, Mapping) and isinstance(values.get(score), (int, float))
    }


def _count(fault: object) -> int:
    """Return how many clients a fault had, also where they are counted by reason."""
    if isinstance(fault, Mapping):
        return sum(map(_count, fault.values()))
    return fault if isinstance(fault, int) else 0
