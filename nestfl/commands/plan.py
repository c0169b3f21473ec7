"""`nestfl plan`: prints the table of a network's levels, as text, JSON or a picture."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click

from data.ranges import Range
from nestfl.commands.group import app
from nestfl.commands.shared_options import FILE, LEVEL, SIZES, number, plugin_option, refuse

if TYPE_CHECKING:
    import torch

    from models.task import Task
    from strategies.levels.cost import Cost, CostKind
    from strategies.levels.patterns import CutKind
    from strategies.levels.planning import Level, SearchGrid, Split


@app.command(
    "plan",
    epilog="""\b
    Examples:
      nestfl plan --model resnet56 --levels 4
      nestfl plan --model resnet18 --ratios .1,.3,1 --cost macs
      nestfl plan --budgets 2e5,2e5,9e5,2e6
      nestfl plan --model resnet56 --cut depth --ratios .2,.4,.6,.8,1""",
)
@click.option("--model", metavar="NAME", default="resnet110", help="The full network.")
@click.option(
    "--levels",
    metavar="N",
    type=LEVEL,
    help="How many levels; each costs half of the next (4 if not given), or has its share of "
    "--budgets (as many as separate them best).",
)
@click.option(
    "--ratios", metavar="LIST", help="Each level's share of the cost, such as .125,.25,.5,1."
)
@click.option(
    "--budgets",
    metavar="LIST",
    help="Each client's budget, in the cost's unit, to make levels of.",
)
@click.option(
    "--splits",
    metavar="LIST",
    help="Given splits, not searched: DEPTH:WIDTH,... where a depth is a unit's number, or a share "
    "such as 2/3, .77 or 1.0.",
)
@click.option(
    "--cut",
    metavar="KIND",
    help="NeFL's submodels instead, without early exits, that lack: width, depth (blocks of each "
    "stage), both, or prefix (the last blocks).",
)
@click.option(
    "--tolerance",
    metavar="SHARE",
    type=number(Range(0, 100)),
    default=0.1,
    help="How far a cost may be from its target.",
)
@click.option("--cost", metavar="KIND", default="parameters", help="parameters, macs or memory.")
@click.option(
    "--depth-grid",
    metavar="N",
    type=SIZES,
    help="Steps of depth to search; each unit if not given.",
)
@click.option(
    "--width-step",
    metavar="STEP",
    type=number(Range(0.0001, 1)),
    default=0.05,
    help="Step of width to search.",
)
@click.option("--classes", metavar="N", type=SIZES, default=10, help="Classes of the data.")
@click.option(
    "--channels", metavar="N", type=SIZES, default=3, help="Channels of an image or a series."
)
@click.option(
    "--image-size", metavar="N", type=SIZES, default=32, help="Height and width of an image."
)
@click.option(
    "--tokens",
    metavar="N",
    type=SIZES,
    default=128,
    help="Tokens of a text, if the network reads text.",
)
@click.option(
    "--length",
    metavar="N",
    type=SIZES,
    default=50,
    help="Steps of a series, if the network reads series.",
)
@click.option(
    "--option",
    "options",
    metavar="KEY=VALUE",
    multiple=True,
    help="An option of the model, such as head=pool or stem=imagenet; may be given several times.",
)
@click.option(
    "--latency/--no-latency", default=True, help="Measure the forward pass on this machine."
)
@plugin_option()
@click.option("--json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--plot", metavar="FILE", type=FILE, help="Draw the levels to this file.")
def plan_command(latency: bool, json: bool, plot: Path | None, **request: Any) -> None:
    """Split a network into levels, and show what each one costs."""
    try:
        planned = make_plan(Request.parse(**request), latency)
        if plot is not None:
            draw(planned, plot)
    except (ValueError, OSError) as error:
        refuse("plan", error)
    click.echo(as_json(planned)) if json else show(planned)


Choice = TypeVar("Choice")
WIDTHS, AMOUNTS = Range(0, 1, above=True), Range(0, 1e18, above=True)
LEVELS = 4
"""Default number of levels, as in the papers' tables."""


@dataclass(frozen=True)
class Request:
    """The options of `nestfl plan`, checked."""

    task: Task
    kind: CostKind
    grid: SearchGrid
    tolerance: float
    ratios: tuple[float, ...]
    splits: tuple[Split, ...] | None
    cut: CutKind | None
    """For NeFL's submodels: the parts that they leave out."""
    level_of: tuple[int, ...] | None
    """Each client's level, if budgets were given."""

    @classmethod
    def parse(
        cls,
        model: str,
        levels: int | None,
        ratios: str | None,
        budgets: str | None,
        splits: str | None,
        cut: str | None,
        tolerance: float,
        cost: str,
        depth_grid: int | None,
        width_step: float,
        classes: int,
        channels: int,
        image_size: int,
        tokens: int,
        length: int,
        options: Sequence[str],
    ) -> Request:
        from models.task import Task
        from strategies.levels.cost import COST_KINDS
        from strategies.levels.cost import cost as cost_of
        from strategies.levels.patterns import CutKind
        from strategies.levels.planning import (
            PlanError,
            SearchGrid,
            cluster_budgets,
            halving_ratios,
        )

        ways = {"--ratios": ratios, "--budgets": budgets, "--splits": splits}
        given = [name for name, text in ways.items() if text is not None]
        if len(given) > 1:
            raise PlanError("give one of --ratios, --budgets and --splits")
        for name in given:
            if not str(ways[name]).strip():
                raise PlanError(f"{name} is empty: expected at least one, separated by commas")
            if cut is not None and name == "--splits":
                raise PlanError(f"--cut {cut} beside --splits, which say what is cut: give one")
            if levels is not None and name != "--budgets":
                raise PlanError(f"--levels {levels} beside {name}, which says how many: give one")
        sizes = {"classes": classes, "channels": channels, "size": image_size}
        for name, value in {**sizes, "tokens": tokens, "length": length}.items():
            if value < 1:
                raise PlanError(f"{name} {value}: expected at least 1")
        if tolerance < 0:
            raise PlanError(f"tolerance {tolerance}: expected 0 or more")
        task = Task(model, classes, channels, image_size, _options(options), tokens, length)
        kind: CostKind = _choice(cost, "cost", COST_KINDS)
        shares = None
        if ratios:
            shares = tuple(_number(text, "--ratios", WIDTHS) for text in ratios.split(","))
        level_of = None
        if budgets:
            amounts = [_number(text, "--budgets", AMOUNTS) for text in budgets.split(",")]
            clusters = cluster_budgets(amounts, cost_of(task, task.whole).of(kind), levels)
            shares, level_of = clusters.ratios, clusters.level_of
        return cls(
            task=task,
            kind=kind,
            grid=SearchGrid(depth_grid, width_step),
            tolerance=tolerance,
            ratios=shares or tuple(halving_ratios(LEVELS if levels is None else levels)),
            splits=_splits(splits, task.units) if splits else None,
            cut=_choice(cut, "cut", get_args(CutKind)) if cut is not None else None,
            level_of=level_of,
        )


@dataclass(frozen=True)
class Plan:
    """The levels, the full model's cost, and each level's measured latency."""

    request: Request
    levels: list[Level]
    whole: Cost
    measured: bool
    milliseconds: list[float] | None
    """None if it was not asked for, or if the network takes no single input of this size."""


def make_plan(request: Request, measure: bool = True) -> Plan:
    """Return the requested levels with their costs, and their latencies if `measure` is set."""
    from strategies.levels.cost import cost as cost_of

    levels = _levels(request)
    return Plan(
        request,
        levels,
        cost_of(request.task, request.task.whole),
        measure,
        latencies(request.task, levels) if measure else None,
    )


def _levels(request: Request) -> list[Level]:
    from strategies.levels.patterns import search_patterns
    from strategies.levels.planning import levels_of, search_splits

    task, ratios, tolerance, kind = request.task, request.ratios, request.tolerance, request.kind
    if request.cut is not None:
        return search_patterns(task, ratios, request.cut, tolerance, kind, "ceil")
    splits = request.splits or search_splits(task, ratios, tolerance, kind, request.grid)
    return levels_of(task, splits)


def latencies(task: Task, levels: Sequence[Level], seconds: float = 2.0) -> list[float] | None:
    """Return each level's median time of a forward pass of one input, in milliseconds.

    The levels take turns, so that a busy machine slows all of them equally. It is None if an input
    shrinks to one pixel, which batch norm without running statistics refuses.
    """
    import statistics

    import torch

    nets = [task.build(level.counted).eval() for level in levels]
    given = task.input(1)
    turns: list[list[float]] = []
    with torch.inference_mode():
        try:
            for net in nets:
                net(given)
        except ValueError:
            return None
        while len(turns) < 5 or sum(map(sum, turns)) < seconds:
            turns.append([_seconds(net, given) for net in nets])
    return [1000 * statistics.median(times) for times in zip(*turns, strict=True)]


def _seconds(net: torch.nn.Module, given: torch.Tensor) -> float:
    start = time.perf_counter()
    net(given)
    return time.perf_counter() - start


def show(plan: Plan) -> None:
    """Print the plan as a table."""
    import torch
    from rich.console import Console
    from rich.table import Table

    task, kind = plan.request.task, plan.request.kind
    table = Table(title=f"{task.model}, {task.num_classes} classes: share is of {kind}")
    headings = ["level", "depth", "width", "params", "MACs", "share", "memory"]
    for heading in headings + (["latency"] if plan.milliseconds else []):
        table.add_column(heading, justify="right")
    for row, level in enumerate(plan.levels):
        depth, width = level.slice.kept_units(task.units), level.slice.share()
        cells = [
            f"{level.number}",
            f"{depth}/{task.units} {depth / task.units:.2f}",
            f"{width:.2f}",
            _millions(level.cost.parameters, 3),
            _millions(level.cost.macs, 2),
            f"{level.cost.of(kind) / plan.whole.of(kind):.3f}",
            _millions(level.cost.memory, 2, "MB"),
        ]
        if plan.milliseconds:
            cells.append(f"{plan.milliseconds[row]:.1f} ms")
        table.add_row(*cells)
    console = Console()
    console.print(table)
    console.print(
        "The full model is counted with the network's own exits alone, the others with those on "
        "their path. Memory is what training keeps of one input."
    )
    if plan.milliseconds:
        console.print(f"Latency: one input on this CPU, {torch.get_num_threads()} threads, median.")
    elif plan.measured:
        console.print(
            "No latency: one input of this size shrinks to a pixel, which batch norm cannot "
            "take by itself (see the model's norm)."
        )
    if plan.request.level_of:
        console.print(f"Levels of the clients: {', '.join(map(str, plan.request.level_of))}")


def as_json(plan: Plan) -> str:
    """Return the plan, and all that it depends on, as JSON."""
    from strategies.levels.cost import cost as cost_of

    task, kind = plan.request.task, plan.request.kind
    levels = [
        {
            "level": level.number,
            "depth": (depth := level.slice.kept_units(task.units)),
            "depth_share": depth / task.units,
            "width": level.slice.share(),
            "exits": level.slice.exits,
            **({"blocks": level.slice.blocks} if level.slice.blocks else {}),
            **asdict(level.cost),
            "share": level.cost.of(kind) / plan.whole.of(kind),
            "parameters_with_exits": cost_of(task, level.slice).parameters,
            **({"latency_ms": plan.milliseconds[row]} if plan.milliseconds else {}),
        }
        for row, level in enumerate(plan.levels)
    ]
    answer = {
        "model": task.model,
        "units": task.units,
        "classes": task.num_classes,
        "cost": kind,
        "levels": levels,
    }
    if plan.request.level_of:
        answer["level_of_client"] = plan.request.level_of
    return json.dumps(answer, indent=2)


def draw(plan: Plan, path: Path) -> None:
    """Draw each level as a box, width by depth, in the outline of the full model."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    from strategies.levels.planning import PlanError

    figure = Figure(figsize=(2.2 * len(plan.levels) + 0.4, 3.4), layout="constrained")
    for column, level in enumerate(plan.levels, 1):
        axes = figure.add_subplot(1, len(plan.levels), column)
        units = plan.request.task.units
        depth, width = level.slice.kept_units(units) / units, level.slice.share()
        axes.add_patch(Rectangle((0, 0), 1, 1, fill=False, linestyle=":", color="0.6"))
        axes.add_patch(Rectangle((0, 1 - depth), width, depth, color="C0", alpha=0.35))
        for unit in level.slice.exits or ():
            at = 1 - unit / plan.request.task.units
            axes.plot([0, width], [at, at], color="C3", linewidth=2)
        axes.text(width / 2, 1.02, f"{width:.0%}", ha="center", va="bottom")
        axes.text(-0.03, 1 - depth / 2, f"{depth:.0%}", ha="right", va="center", rotation=90)
        axes.text(
            width / 2,
            1 - depth / 2,
            f"{_millions(level.cost.parameters, 2)}\n{_millions(level.cost.macs, 1)} MACs",
            ha="center",
            va="center",
            fontsize=8,
        )
        axes.set(title=f"Level {level.number}", xlim=(-0.15, 1.05), ylim=(-0.05, 1.12))
        axes.set_axis_off()
    try:
        figure.savefig(path, dpi=150)
    except ValueError as error:  # names the formats that there are
        raise PlanError(f"cannot draw to {path}: {error}") from None


def _millions(number: float, digits: int, unit: str = "M") -> str:
    return f"{number / 1e6:.{digits}f} {unit}"


def _number(text: str, option: str, range: Range) -> float:
    from fractions import Fraction

    from strategies.levels.planning import PlanError

    try:
        found = float(Fraction(text.strip()))
    except (ValueError, ZeroDivisionError, OverflowError):
        raise PlanError(f"{option}: {text[:40]!r} is not a number, {range}") from None
    try:
        return range.check(option, found)
    except ValueError as error:
        raise PlanError(str(error)) from None


def _choice(text: str, what: str, choices: Sequence[Choice]) -> Choice:
    from strategies.levels.planning import PlanError

    for choice in choices:
        if choice == text:
            return choice
    raise PlanError(f"unknown {what} {text!r}; choose from {', '.join(map(str, choices))}")


def _splits(text: str, units: int) -> tuple[Split, ...]:
    from strategies.levels.planning import PlanError, Split

    splits = []
    for pair in text.split(","):
        depth, colon, width = pair.strip().partition(":")
        if not colon:
            raise PlanError(f"split {pair!r}: expected DEPTH:WIDTH, such as 36:.7 or 2/3:.7")
        steps = _number(depth, "--splits", Range(0, 2**20))
        unit = int(steps if depth.isdigit() else units * steps + 1e-6)
        splits.append(Split(unit, _number(width, "--splits", WIDTHS)))
    return tuple(splits)


def _options(pairs: Sequence[str]) -> tuple[tuple[str, str], ...]:
    from strategies.levels.planning import PlanError

    options = []
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise PlanError(f"option {pair!r}: expected NAME=VALUE, such as head=pool")
        options.append((name, value))
    return tuple(sorted(options))
