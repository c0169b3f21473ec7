"""`nestfl predict`: runs the Predictor with the typed options, prints and writes its answers."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from data.ranges import Range
from nestfl.commands.group import app
from nestfl.commands.shared_options import A_SHARE, COUNT, FILE, LEVEL, POSITIVE, number, refuse
from protocol.printable import printable

if TYPE_CHECKING:
    from rich.console import Console
    from torch import Tensor

    from data.foreign_files import Broken
    from data.inputs import Inputs
    from data.spec import DatasetSpec
    from inference import Answers
    from server_app.predictor import Outcome, Plan, Predictor, Result, Watch
    from server_app.trained_level import RestoredLevel


@app.command(
    "predict",
    epilog="""\b
    Examples:
      nestfl predict runs/RUN photos/ --budget 0.7 --output answers.csv
      nestfl predict runs/RUN --table""",
)
@click.argument("run", type=FILE, help="A run directory, or a checkpoint in one.")
@click.argument(
    "inputs",
    required=False,
    type=FILE,
    help="A folder of images, an image, parquet, .npz, or .csv for tables; the run's test set if "
    "not given.",
)
@click.option(
    "--level", metavar="N", type=LEVEL, help="The level that answers; the largest if not given."
)
@click.option(
    "--best", is_flag=True, help="Answer from the run's best checkpoint on validation data."
)
@click.option(
    "--budget",
    metavar="SHARE",
    type=POSITIVE,
    help="Average cost: a share of the MACs of always running to the end.",
)
@click.option(
    "--budget-ms",
    metavar="MS",
    type=POSITIVE,
    help="Average cost: milliseconds a sample, as measured here.",
)
@click.option(
    "--threshold",
    metavar="SHARE",
    type=A_SHARE,
    help="Confidence from which on a sample leaves, at all exits.",
)
@click.option(
    "--max-loss",
    metavar="POINTS",
    type=number(Range(0, 100)),
    help="The least cost that loses so many points of accuracy on validation.",
)
@click.option(
    "--batch-size", metavar="N", type=COUNT, default=256, help="Samples that are answered together."
)
@click.option(
    "--output", metavar="FILE", type=FILE, help="Write all answers to this .csv or .json file."
)
@click.option(
    "--table", is_flag=True, help="Show accuracy and cost for a range of budgets instead."
)
@click.option(
    "--plot",
    metavar="FILE",
    type=FILE,
    help="Draw accuracy against cost to this file; as --table.",
)
@click.option("--json", is_flag=True, help="Print JSON instead of a table.")
def predict_command(json: bool, **request: Any) -> None:
    """Answer with a trained level; easy inputs leave at early exits."""
    from rich.console import Console

    from nestfl.watching.passes import watched_on
    from strategies.federation import FederationError

    try:
        asked = Request(**request)
        report = predict(asked, None if json else watched_on(Console(stderr=True)))
    except (ValueError, OSError, FederationError) as error:
        refuse("predict", error)
    click.echo(as_json(report)) if json else show(report)

    raise SystemExit(1 if report.inputs.broken else 0)


SHOWN = 10
"""Most answers that are printed; a file has all."""
MOST_BROKEN = 20
"""Most broken images that are named on the terminal."""
FORMATS = (".csv", ".json")


class PredictError(ValueError):
    """A prediction that cannot be made as asked."""


@dataclass(frozen=True)
class Request:
    """The options of `nestfl predict`, checked."""

    run: Path
    inputs: Path | None = None
    best: bool = False
    """Use the checkpoint with the best validation score instead of the newest one."""
    level: int | None = None
    budget: float | None = None
    """Share of the MACs of always running to the end."""
    budget_ms: float | None = None
    threshold: float | None = None
    max_loss: float | None = None
    """Points of accuracy on validation data."""
    batch_size: int = 256
    output: Path | None = None
    table: bool = False
    plot: Path | None = None

    def __post_init__(self) -> None:
        if self.best and self.run.is_file():
            raise PredictError(
                f"--best chooses a checkpoint: give the run's folder, not {self.run}"
            )
        chosen = [self.budget, self.budget_ms, self.threshold, self.max_loss]
        if sum(choice is not None for choice in chosen) > 1:
            raise PredictError("give one of --budget, --budget-ms, --threshold and --max-loss")
        for name, budget in {"budget": self.budget, "budget-ms": self.budget_ms}.items():
            if budget is not None and not budget > 0:
                raise PredictError(f"--{name} {budget}: expected above 0")
        if self.threshold is not None and not 0 <= self.threshold <= 1:
            raise PredictError(f"--threshold {self.threshold}: expected 0 to 1")
        if self.max_loss is not None and not 0 <= self.max_loss <= 100:
            raise PredictError(f"--max-loss {self.max_loss}: expected 0 to 100 points")
        if self.batch_size < 1:
            raise PredictError(f"--batch-size {self.batch_size}: expected at least 1")
        if self.output is not None and self.output.suffix not in FORMATS:
            raise PredictError(f"--output {self.output}: expected a name in {' or '.join(FORMATS)}")
        if self.compares and (self.output or chosen != [None] * 4):
            raise PredictError(
                "--table and --plot try budgets of their own and give no answers: "
                "leave out --output, --budget, --budget-ms, --threshold and --max-loss"
            )

    @property
    def compares(self) -> bool:
        return self.table or self.plot is not None


@dataclass(frozen=True, eq=False)
class Report:
    """The answers to the inputs, or the outcomes of a range of budgets."""

    predictor: Predictor
    inputs: Inputs
    plan: Plan
    answers: Answers | None = None
    result: Result | None = None
    outcomes: Sequence[Outcome] = ()


def predict(request: Request, watch: Watch[Tensor] | None = None) -> Report:
    """Answer the inputs and write the requested files; `watch` sees each pass over batches."""
    from rich.console import Console

    from nestfl.watching.log_colours import colour_for_terminals
    from server_app.predictor import TO_THE_END, Predictor, compare, unwatched
    from server_app.trained_level import load_level

    colour_for_terminals()
    level = load_level(request.run, request.level, request.best)
    if level.dataset.holds == "language":
        raise PredictError(
            f"{request.run} trained a language model on {level.dataset.name}, which has an answer "
            "for every word: nestfl predict is for images and texts of one class each; `nestfl "
            "report` shows its perplexity"
        )
    if level.untrained:
        Console(stderr=True).out(
            f"nestfl predict: warning: level {level.number} is untrained: no client had trained it "
            f"by round {level.round}",
            highlight=False,
        )
    inputs = _inputs(request, level.dataset)
    _warn_of(inputs.broken)
    if not len(inputs.data):
        raise PredictError(f"nothing to answer for: {request.inputs} holds no inputs")
    if request.plot is not None and not inputs.labelled:
        raise PredictError("--plot draws accuracy, and these inputs have no labels")
    predictor = Predictor(level, request.batch_size, watch or unwatched)
    if request.compares:
        report = Report(predictor, inputs, TO_THE_END, outcomes=compare(predictor, inputs))
        if request.plot is not None:
            draw(report, request.plot)
        return report
    plan = _plan(request, predictor)
    answers = predictor.answer_all(inputs.data, plan)
    report = Report(predictor, inputs, plan, answers, predictor.judge(answers, plan, inputs))
    if request.output is not None:
        request.output.write_text(
            as_csv(report) if request.output.suffix == ".csv" else as_json(report) + "\n"
        )
    return report


def _inputs(request: Request, dataset: DatasetSpec) -> Inputs:
    from data.clients import global_test
    from data.inputs import Inputs, read_inputs

    if request.inputs is not None:
        return read_inputs(request.inputs, dataset)
    test = global_test(dataset)
    return Inputs(test, tuple(f"test:{row}" for row in range(len(test))))


def _warn_of(broken: Sequence[Broken]) -> None:
    """Name the images that get no answer; the terminal shows the first ones."""
    from rich.console import Console

    console = Console(stderr=True)
    for each in broken[:MOST_BROKEN]:
        text = f"nestfl predict: warning: {printable(str(each))}: no answer for it"
        console.out(text, highlight=False)
    if broken[MOST_BROKEN:]:
        more = len(broken) - MOST_BROKEN
        text = f"nestfl predict: warning: {more} more images are broken: --json names all"
        console.out(text, highlight=False)


def _plan(request: Request, predictor: Predictor) -> Plan:
    from server_app.predictor import TO_THE_END

    if request.budget is not None:
        return predictor.plan_for_budget(request.budget, "share")
    if request.budget_ms is not None:
        return predictor.plan_for_budget(request.budget_ms, "ms")
    if request.max_loss is not None:
        return predictor.plan_for_loss(request.max_loss)
    return (
        TO_THE_END if request.threshold is None else predictor.plan_for_threshold(request.threshold)
    )


# --- on the terminal -------------------------------------------------------------------------


def show(report: Report, console: Console | None = None) -> None:
    """Print the first answers, or the table of budgets."""
    from rich.console import Console

    console = console or Console()
    _print_table(console, *(_outcomes(report) if report.outcomes else _answers(report)))
    if report.result is not None:
        console.print(_summary(report, report.result), highlight=False)
    else:
        console.print(
            f"Measured here in batches of {report.predictor.batch_size}, side by side; thresholds "
            "are of the clients' validation data. Speed-up and share are against "
            f"{_to_the_end(report.predictor.level)}.",
            highlight=False,
        )


def _print_table(console: Console, title: str, rows: Sequence[Mapping[str, str]]) -> None:
    """Print a table; if the terminal is too narrow for it, a line for each row."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=title)
    for heading in rows[0]:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*map(escape, row.values()))
    unbounded = console.options.update(width=10_000)
    if console.measure(table, options=unbounded).maximum <= console.width:
        console.print(table)
        return
    lines = (", ".join(f"{heading} {cell}" for heading, cell in row.items()) for row in rows)
    for line in (title, *lines):
        console.print(line, highlight=False, markup=False)


def _answers(report: Report) -> tuple[str, list[dict[str, str]]]:
    rows = _rows(report)
    shown = [{**row, "confidence": f"{row['confidence']:.3f}"} for row in rows[:SHOWN]]
    title = f"The first {len(shown)} of {len(rows)} answers"
    return title, [{key: str(cell) for key, cell in row.items()} for row in shown]


def _summary(report: Report, result: Result) -> str:
    from server_app.predictor import TO_THE_END

    level = report.predictor.level
    parts = [f"{_title(level)}: {len(report.inputs.data)} inputs"]
    if result.accuracy is not None:
        parts.append(f"accuracy {result.accuracy:.2%}")
    parts.append(f"{result.macs / 1e6:.2f} M MACs each, {result.share:.3f} of the full cost")
    left = (
        f"{share:.1%} at exit {unit}" for unit, share in zip(level.exits, result.exits, strict=True)
    )
    ended = "all ran to the end" if report.plan == TO_THE_END else f"left: {', '.join(left)}"
    return ", ".join([*parts, ended]) + "."


def _title(level: RestoredLevel) -> str:
    mark = " (untrained)" if level.untrained else ""
    score = "" if level.validation is None else f" (validation {level.validation:.2%})"
    return f"Level {level.number}{mark} after round {level.round}{score}"


def _to_the_end(level: RestoredLevel) -> str:
    if level.ensemble:
        return "the ensemble of all exits"
    return "the last exit alone, without the early exits' heads"


def _outcomes(report: Report) -> tuple[str, list[dict[str, str]]]:
    level = report.predictor.level
    left = f"% left at {'/'.join(map(str, level.exits))}"
    rows = []
    for outcome in report.outcomes:
        result = outcome.result
        rows.append(
            {
                "budget": f"{outcome.budget:.3f}",
                "accuracy": "" if result.accuracy is None else f"{result.accuracy:.2%}",
                "M MACs": f"{result.macs / 1e6:.2f}",
                "share": f"{result.share:.3f}",
                "ms": f"{outcome.milliseconds:.3f}",
                "speed-up": f"{outcome.speedup:.2f}",
                left: "/".join(f"{100 * share:.0f}" for share in result.exits),
            }
        )
    return f"{_title(level)}: budgets", rows


# --- in files --------------------------------------------------------------------------------


def _rows(report: Report) -> list[dict[str, Any]]:
    """Return a row for each answer."""
    if report.answers is None:
        return []
    facts, units = report.inputs.data.facts, report.predictor.level.exits
    columns = (report.answers.classes, report.answers.exits, report.answers.confidence)
    answers = zip(*(column.tolist() for column in columns), strict=True)
    labels = report.inputs.data.labels.tolist()
    return [
        {
            "input": name,
            "class": facts.classes[chosen],
            "exit": units[left],
            "confidence": confidence,
            **({"label": facts.classes[label]} if report.inputs.labelled else {}),
        }
        for name, (chosen, left, confidence), label in zip(
            report.inputs.names, answers, labels, strict=True
        )
    ]


def as_csv(report: Report) -> str:
    """Return all answers as CSV, a line for each input."""
    rows, text = _rows(report), io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_json(report: Report) -> str:
    """Return the answers or the budgets' outcomes, with the facts they depend on, as JSON."""
    level = report.predictor.level
    found: dict[str, Any] = {
        "level": level.number,
        "round": level.round,
        **({"untrained": True} if level.untrained else {}),
        **({} if level.validation is None else {"validation": level.validation}),
        "exits": level.exits,
        "macs_by_exit": report.predictor.macs.exits,
        "full_macs": report.predictor.macs.full,
        "inputs": len(report.inputs.data),
        **({"broken": list(map(str, report.inputs.broken))} if report.inputs.broken else {}),
    }
    if report.result is not None:
        found |= {
            "thresholds": _finite(report.plan.thresholds),
            **_result(report.result),
            "answers": _rows(report),
        }
    else:
        found["budgets"] = [
            {
                "budget": outcome.budget,
                "thresholds": _finite(outcome.thresholds),
                **_result(outcome.result),
                "ms": outcome.milliseconds,
                "speedup": outcome.speedup,
            }
            for outcome in report.outcomes
        ]
    return json.dumps(found, indent=2)


def _result(result: Result) -> dict[str, Any]:
    return {
        "accuracy": result.accuracy,
        "macs": result.macs,
        "share": result.share,
        "left_at_exit": result.exits,
    }


def _finite(thresholds: Sequence[float] | None) -> list[float | None] | None:
    """Return thresholds for JSON: null for an exit where no input leaves."""
    if thresholds is None:
        return None
    return [threshold if math.isfinite(threshold) else None for threshold in thresholds]


def draw(report: Report, path: Path) -> None:
    """Draw accuracy against cost, one point per budget."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.4), layout="constrained")
    accuracies = [100 * (outcome.result.accuracy or 0) for outcome in report.outcomes]
    costs = {
        "M MACs a sample": [outcome.result.macs / 1e6 for outcome in report.outcomes],
        "ms a sample, measured": [outcome.milliseconds for outcome in report.outcomes],
    }
    last = f"always {'all exits' if report.predictor.level.ensemble else 'the last exit'}"
    for column, (label, values) in enumerate(costs.items(), 1):
        axes = figure.add_subplot(1, 2, column)
        axes.plot(values[:-1], accuracies[:-1], "o-", label="early exits")
        axes.plot(values[-1], accuracies[-1], "s", color="C3", label=last)
        axes.set(xlabel=label, ylabel="accuracy, %")
        axes.grid(alpha=0.3)
    axes.legend()
    try:
        figure.savefig(path, dpi=150)
    except ValueError as error:  # names the formats that there are
        raise PredictError(f"cannot draw to {path}: {error}") from None
