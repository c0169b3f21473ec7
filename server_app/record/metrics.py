"""The measures of a round: a line of metrics.jsonl, or a short one for the terminal.

    {"round": 3, "seconds": 4.1, "bytes": {"down": 900, "up": 900}, "train": {"loss": 0.4},
     "clients": {"sampled": 4, "replied": 3, "refused": {"non-finite": 1}, "failed": {}},
     "levels": {"1": {"exits": {"6": {"accuracy": 0.9, "loss": 0.3}}, "accuracy": 0.9}},
     "worst": 0.9, "mean": 0.9, "local": 0.92, "global": 0.91, "validation": 0.91,
     "worst_tenth": {"local": 0.8, "global": 0.79, "validation": 0.81}}

All but the round may be absent. Accuracies are shares. A language model has perplexities beside
them: "perplexity" of a level and an exit, and else "mean_perplexity", "local_perplexity" and so on.
A fleet with a topology of nodes has "cis", the accuracy of its collaborative inference system, and
with three exits "settings", the same under other serving settings: {"80-15-5": 0.6}.

confusion.json holds the confusion matrices of the newest test on the server. They grow with the
square of the number of classes, so lines of metrics.jsonl have the right answers by class only.

    {"round": 20, "levels": {"1": [[33, 0], [2, 34]]}}

A row has the examples of one class, a column those with one answer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any, Required, TypedDict, cast

from protocol.documents import FINITE, NOT_NEGATIVE, read_json, read_lines
from server_app.record.files import write_text
from training.perplexity import perplexity_of, shown

Seconds = Annotated[float, FINITE]
Count = Annotated[int, NOT_NEGATIVE]


class ExitMetrics(TypedDict, total=False):
    """The scores of one exit."""

    accuracy: float
    loss: float
    perplexity: float  # of a language model


# The functional form, because `global` is a keyword of Python.
LevelMetrics = TypedDict(
    "LevelMetrics",
    {
        "exits": dict[str, ExitMetrics],  # by the unit that the exit follows
        "ensemble": ExitMetrics,  # the mean of the exits' logits, if the method answers with it
        "accuracy": float,  # the level's own answer: its last exit, or the ensemble
        "loss": float,  # of the same answer
        "right": list[Count],  # correct answers by class, out of class_sizes
        "confusion": list[list[Count]],  # by class and answer; no line has it: confusion.json has
        "local": float,  # mean over the level's clients of their own model on their own test part
        "global": float,  # the same of the full model
        "validation": float,  # like local, on their validation parts
        "personal": float,  # in a summary only: like local, of what they have just trained
        "perplexity": float,  # of a language model; lower is better
        "local_perplexity": float,
        "global_perplexity": float,
        "validation_perplexity": float,
        "lack": str,  # "untrained" or "no client", if nobody holds it (coverage.py)
    },
    total=False,
)


class ClientCounts(TypedDict, total=False):
    """Numbers of a round's clients: sampled, replied, refused and failed."""

    sampled: int
    replied: int
    refused: dict[str, int]  # by reason
    failed: dict[str, int]  # by reason
    problems: dict[str, str]  # by client number: the problem of its reply
    forgot: int  # clients that had lost their memory and started afresh


class Traffic(TypedDict, total=False):
    """Bytes between server and clients."""

    down: int  # bytes to the clients
    up: int


class SliceCounts(Traffic, total=False):
    """The replies of a level's clients, and the cost of their training."""

    replied: int
    seconds: Seconds  # training time of the level's slowest client
    device_seconds: Seconds  # training time of all its clients, added up
    macs: int  # multiply-accumulates of their training: 3 x forward x examples x epochs


class TrainedCounts(TypedDict):
    """The training of one client in a round."""

    level: int
    examples: int
    seconds: Seconds


class PersonalTest(TypedDict, total=False):
    """The scores of clients' own trained slices, before they are averaged."""

    accuracy: float  # on the client's own test part
    loss: float
    perplexity: float  # of texts: the mean of exp(loss)


class PersonalMetrics(PersonalTest, total=False):
    """Personal scores of a whole round, also by level and by client."""

    levels: dict[str, PersonalTest]  # by the level's number
    scores: dict[str, float]  # accuracy by client number


class StudentMetrics(TypedDict, total=False):
    """The distillation of one level on the server (FedDF)."""

    steps: int
    loss_start: float  # means over the first and the last ten steps
    loss_end: float
    best_step: int  # with validation examples: the step with the best accuracy, 0 for the start
    validation: float  # accuracy on them at that step
    diverged: bool  # the level keeps its plain average, since distillation gave no finite numbers
    seconds: Seconds


class DistillationMetrics(TypedDict, total=False):
    """A round's distillation on the server (FedDF)."""

    teachers: int  # replies that took part
    dropped: int  # of these: below chance, or without a finite answer
    examples: int  # unlabelled examples to distil with
    seconds: Seconds  # on the server; no client's cost
    levels: dict[str, StudentMetrics]  # by the level's number


class AskCounts(Traffic, total=False):
    """The answers to a question of the server's, such as a test."""

    asked: int
    without: int  # clients that were not asked because they have no example, if any
    answered: int
    refused: dict[str, int]  # by reason
    failed: dict[str, int]  # by reason
    problems: dict[str, str]  # by the client's number


RoundMetrics = TypedDict(
    "RoundMetrics",
    {
        "round": Required[int],  # from 1; 0 is the start from pre-trained weights
        "seconds": Seconds,
        "test_seconds": Seconds,  # part of these: tests on the server and on clients
        "clients": ClientCounts,
        "bytes": Traffic,  # of training
        "slices": dict[str, SliceCounts],  # by level number: replies and bytes of its clients
        "trained": dict[str, TrainedCounts],  # by client number: accepted replies
        "asked": dict[str, AskCounts],  # "statistics", "local", "global", "validation"
        "left_out": dict[str, str],  # nodes that are no clients, with the reason
        "train": dict[str, float],  # "loss": mean over the clients
        "personal": PersonalMetrics,  # means over the clients that trained, without attackers
        "distillation": DistillationMetrics,  # FedDF's, on the server
        "levels": dict[str, LevelMetrics],  # by level number, from "1", the smallest
        "worst": float,  # lowest accuracy of the levels that clients hold
        "mean": float,
        "cis": float,  # accuracy of the fleet's nodes as one collaborative system
        "settings": dict[str, float],  # the same by serving setting: percents of exits 1, 2, 3
        "local": float,  # over all clients
        "global": float,
        "scores": dict[str, dict[str, float]],  # by kind ("local", "global"...): each client's own
        "worst_tenth": dict[str, float],  # by kind, also "personal": mean of the worst tenth
        "class_sizes": list[Count],  # examples of each class in the server's test
        "validation": float,  # mean over the levels; the best round has the highest
        "worst_perplexity": float,  # the highest of the levels
        "mean_perplexity": float,
        "local_perplexity": float,  # mean over all clients of their own
        "global_perplexity": float,
        "validation_perplexity": float,  # the best round has the lowest
    },
    total=False,
)
BY_CLIENT = ("trained", "scores")
"""Entries with a number for every client: too many for events."""
BY_CLASS = ("right", "confusion")
"""Entries of a level with a number for every class: too many for a summary."""


class Confusion(TypedDict):
    """The matrices of one round's test, by level."""

    round: int
    levels: dict[str, list[list[Count]]]  # by the level's name: examples by class and answer


def score_of(line: Mapping[str, Any], score: str) -> float | None:
    """Return a score of a whole round; "personal" is the accuracy of the clients' own tests."""
    found = line.get(score)
    value = found.get("accuracy") if isinstance(found, Mapping) else found
    return value if isinstance(value, (int, float)) else None


def read_metrics(file: Path) -> list[RoundMetrics]:
    """Read the lines of metrics.jsonl; a last line that a kill cut short is left out."""
    return read_lines(file, RoundMetrics)


def to_line(metrics: RoundMetrics) -> str:
    """Return a round as a line of metrics.jsonl."""
    return json.dumps(finite(metrics), allow_nan=False) + "\n"


def finite(value: Any) -> Any:
    """Return the value with null for infinite and NaN numbers, which JSON does not have."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def numbers(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield all numbers but the round's and single clients', named like levels/1/accuracy."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            if key not in BY_CLIENT:
                yield from numbers(value, f"{prefix}{key}/")
        elif isinstance(value, (int, float)) and key != "round":
            yield prefix + key, value


def confusion_of(metrics: Mapping[str, Any]) -> Confusion | None:
    """Return the matrices of a round; None if no test counted its classes."""
    levels: Mapping[str, Any] = metrics.get("levels", {})
    found = {name: level["confusion"] for name, level in levels.items() if "confusion" in level}
    return {"round": metrics["round"], "levels": found} if found else None


def without_confusion(metrics: RoundMetrics) -> RoundMetrics:
    """Return a round's metrics without matrices, as its line has them."""
    levels: Mapping[str, Any] = metrics.get("levels", {})
    if not any("confusion" in level for level in levels.values()):
        return metrics
    kept = {
        name: {key: value for key, value in level.items() if key != "confusion"}
        for name, level in levels.items()
    }
    return cast(RoundMetrics, {**metrics, "levels": kept})


def write_confusion(file: Path, found: Confusion) -> None:
    """Replace the matrices in the file by the newest; one line for each level."""
    rows = (f" {json.dumps(name)}: {json.dumps(each)}" for name, each in found["levels"].items())
    levels = ",\n".join(rows)
    write_text(file, f'{{"round": {found["round"]}, "levels": {{\n{levels}\n}}}}\n')


def read_confusion(file: Path) -> Confusion | None:
    """Return the content of confusion.json; None without file, `DocumentError` if damaged."""
    try:
        found: Confusion = read_json(file, Confusion)
    except FileNotFoundError:
        return None
    return found


def round_line(record: Mapping[str, Any], rounds: int | None) -> str:
    """Describe a round: its number, and the recorded replies, loss, accuracies and time."""
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
    """Describe the progress of the server's own work, with the round's training loss."""
    return ", ".join(filter(None, (f"round {round}", _loss(loss), f"{what}: step {done} of {of}")))


def answers_line(round: int, what: str, done: int, of: int) -> str:
    """Describe the number of answered questions besides training, such as tests."""
    return f"round {round}, {what}: {done} of {of} answered"


def loss_part(record: Mapping[str, Any]) -> str:
    """Describe the mean of the clients' losses; empty without it."""
    train = record.get("train")
    return _loss(train.get("loss")) if isinstance(train, Mapping) else ""


def tested_loss_part(record: Mapping[str, Any]) -> str:
    """Describe the mean loss of the levels that clients hold; empty without a test."""
    levels = record.get("levels")
    found = levels.values() if isinstance(levels, Mapping) else ()
    held = [each for each in found if isinstance(each, Mapping) and "lack" not in each]
    losses = [math.nan if each["loss"] is None else each["loss"] for each in held if "loss" in each]
    return f"test {_loss(fmean(losses))}" if losses else ""


def _loss(loss: object) -> str:
    return f"loss {loss:.4g}" if isinstance(loss, (int, float)) else ""


def personal_part(record: Mapping[str, Any]) -> str:
    """Describe the mean personal accuracy of the clients; empty without a test."""
    score = score_of(record, "personal")
    return f"personal {100 * score:.1f} %" if score is not None else ""


def accuracies_part(accuracies: Mapping[str, float]) -> str:
    """Describe the levels' accuracies; empty without a test."""
    shown = [f"{level}: {100 * accuracy:.1f} %" for level, accuracy in accuracies.items()]
    return "accuracy of level " + ", ".join(shown) if shown else ""


def system_part(record: Mapping[str, Any]) -> str:
    """Describe the accuracy of the collaborative system; empty if the fleet is none."""
    score = score_of(record, "cis")
    return f"system accuracy {100 * score:.1f} %" if score is not None else ""


def perplexities_part(record: Mapping[str, Any]) -> str:
    """Describe the levels' perplexities; empty for networks that are no language models."""
    name = perplexity_of("accuracy")
    found = [f"{level}: {shown(value)}" for level, value in _scores_of(record, name).items()]
    return "perplexity of level " + ", ".join(found) if found else ""


def validation_part(record: Mapping[str, Any]) -> str:
    """Describe the score that rounds are compared by; empty if clients did not validate."""
    score, perplexity = record.get("validation"), record.get(perplexity_of("validation"))
    if not isinstance(score, (int, float)):
        return ""
    beside = f" and {shown(perplexity)}" if isinstance(perplexity, (int, float)) else ""
    return f"validation {100 * score:.1f} %{beside}"


def accuracies_of(record: Mapping[str, Any]) -> dict[str, float]:
    """Return each level's accuracy in a round's record; empty without a test.

    A level without clients is marked: "4 (untrained)".
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
    """Return the number of clients with a fault, given as a number or by reason."""
    if isinstance(fault, Mapping):
        return sum(map(_count, fault.values()))
    return fault if isinstance(fault, int) else 0
