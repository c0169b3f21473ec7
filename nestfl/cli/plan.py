"""`nestfl plan`, and what it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from data.ranges import Range
from nestfl.cli.group import app
from nestfl.cli.options import FILE, LEVEL, SIZES, number, plugin_option, refuse


@app.command(
    epilog="""\b
    Examples:
      nestfl plan --model resnet56 --levels 4
      nestfl plan --model resnet18 --ratios .1,.3,1 --cost macs
      nestfl plan --budgets 2e5,2e5,9e5,2e6
      nestfl plan --model resnet56 --cut depth --ratios .2,.4,.6,.8,1"""
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
def plan(latency: bool, json: bool, plot: Path | None, **request: Any) -> None:
    """Split a network into levels, and show what each one costs."""
    from nestfl.commands import plan as planner  # imports torch: not for --help

    try:
        planned = planner.make_plan(planner.Request.parse(**request), latency)
        if plot is not None:
            planner.draw(planned, plot)
    except (ValueError, OSError) as error:
        refuse("plan", error)
    click.echo(planner.as_json(planned)) if json else planner.show(planned)
