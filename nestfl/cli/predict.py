"""`nestfl predict`, and what it takes."""

from __future__ import annotations

from typing import Any

import click

from data.ranges import Range
from nestfl.cli.group import app
from nestfl.cli.options import A_SHARE, COUNT, FILE, LEVEL, POSITIVE, number, refuse


@app.command(
    epilog="""\b
    Examples:
      nestfl predict runs/RUN photos/ --budget 0.7 --output answers.csv
      nestfl predict runs/RUN --table"""
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
def predict(json: bool, **request: Any) -> None:
    """Answer with a trained level; easy inputs leave at early exits."""
    from rich.console import Console

    from nestfl.commands import predict as predictor
    from nestfl.watching.passes import watched_on
    from server_app.predictor import unwatched
    from strategies.federation import FederationError

    try:
        asked = predictor.Request(**request)
        report = predictor.predict(asked, unwatched if json else watched_on(Console(stderr=True)))
    except (ValueError, OSError, FederationError) as error:
        refuse("predict", error)
    click.echo(predictor.as_json(report)) if json else predictor.show(report)
    raise SystemExit(1 if report.inputs.broken else 0)
