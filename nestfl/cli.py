"""The commands of `nestfl`, and what they take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def nestfl() -> None:
    """Federated learning of one network on devices that cannot all hold it."""


@app.command()
def plan(
    model: Annotated[str, typer.Option(help="The full network.")] = "resnet110",
    levels: Annotated[
        int | None,
        typer.Option(
            help="How many levels; each costs half of the next (4 if not given), or has its share "
            "of --budgets (as many as separate them best)."
        ),
    ] = None,
    ratios: Annotated[
        str | None, typer.Option(help="Each level's share of the cost, such as .125,.25,.5,1.")
    ] = None,
    budgets: Annotated[
        str | None,
        typer.Option(help="Each client's budget, in the cost's unit, to make levels of."),
    ] = None,
    splits: Annotated[
        str | None,
        typer.Option(
            help="Given splits, not searched: DEPTH:WIDTH,... where a depth is a unit's number, or "
            "a share such as 2/3, .77 or 1.0."
        ),
    ] = None,
    tolerance: Annotated[float, typer.Option(help="How far a cost may be from its target.")] = 0.1,
    cost: Annotated[str, typer.Option(help="parameters, macs or memory.")] = "parameters",
    depth_grid: Annotated[
        int | None, typer.Option(help="Steps of depth to search; each unit if not given.")
    ] = None,
    width_step: Annotated[float, typer.Option(help="Step of width to search.")] = 0.05,
    classes: Annotated[int, typer.Option(help="Classes of the data.")] = 10,
    channels: Annotated[int, typer.Option(help="Channels of an image.")] = 3,
    image_size: Annotated[int, typer.Option(help="Height and width of an image.")] = 32,
    tokens: Annotated[int, typer.Option(help="Tokens of a text, if the network reads text.")] = 128,
    option: Annotated[
        list[str] | None,
        typer.Option(help="An option of the model, such as head=pool or stem=imagenet."),
    ] = None,
    latency: Annotated[bool, typer.Option(help="Measure the forward pass on this machine.")] = True,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Draw the levels to this file.")] = None,
) -> None:
    """Split a network into levels, and show what each one costs."""
    from nestfl import plan as planner  # imports torch: not for --help

    try:
        request = planner.Request.parse(
            model=model,
            levels=levels,
            ratios=ratios,
            budgets=budgets,
            splits=splits,
            tolerance=tolerance,
            cost=cost,
            depth_grid=depth_grid,
            width_step=width_step,
            classes=classes,
            channels=channels,
            image_size=image_size,
            tokens=tokens,
            options=option or [],
        )
        planned = planner.make_plan(request, latency)
        if plot is not None:
            planner.draw(planned, plot)
    except (ValueError, OSError) as error:
        typer.echo(f"nestfl plan: {error}", err=True)
        raise typer.Exit(2) from None
    typer.echo(planner.as_json(planned)) if json else planner.show(planned)


@app.command()
def run(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="What differs from conf/, such as strategy=heterofl train.lr=0.05."),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, help="Simulated clients; those of the fleet if not given.")
    ] = None,
    cpus_per_client: Annotated[int, typer.Option(min=1, help="Cores that a client takes.")] = 1,
    gpus_per_client: Annotated[
        float | None,
        typer.Option(
            min=0, help="Share of a GPU that a client takes; by what training needs if not given."
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Clients at a time; as many as there are cores if not given."),
    ] = None,
    run_dir: Annotated[Path | None, typer.Option(help="Where the run's record goes.")] = None,
    resume: Annotated[
        Path | None, typer.Option(help="A run directory or a checkpoint to go on from.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show only how it ended.")] = False,
) -> None:
    """Train in a simulation on this machine."""
    from nestfl import run as runner

    request = runner.Request(
        overrides=overrides or [],
        nodes=nodes,
        cpus_per_client=cpus_per_client,
        gpus_per_client=gpus_per_client,
        workers=workers,
        run_dir=run_dir,
        resume=resume,
        quiet=quiet,
    )
    raise typer.Exit(runner.run(request))


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="A run directory, or a checkpoint in one.")],
    inputs: Annotated[
        Path | None,
        typer.Argument(
            help="A folder of images, an image, parquet or .npz; the run's test set if not given."
        ),
    ] = None,
    level: Annotated[
        int | None, typer.Option(help="The level that answers; the largest if not given.")
    ] = None,
    budget: Annotated[
        float | None,
        typer.Option(help="Average cost: a share of the MACs of always running to the end."),
    ] = None,
    budget_ms: Annotated[
        float | None, typer.Option(help="Average cost: milliseconds a sample, as measured here.")
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Confidence from which on a sample leaves, at all exits.")
    ] = None,
    max_loss: Annotated[
        float | None,
        typer.Option(help="The least cost that loses so many points of accuracy on validation."),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Samples that are answered together.")] = 256,
    output: Annotated[
        Path | None, typer.Option(help="Write all answers to this .csv or .json file.")
    ] = None,
    table: Annotated[
        bool, typer.Option("--table", help="Show accuracy and cost for a range of budgets instead.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw accuracy against cost to this file; as --table.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Answer with a trained level; easy inputs leave at early exits."""
    from nestfl import predict as predictor
    from strategies.federation import FederationError

    try:
        request = predictor.Request(
            run=run,
            inputs=inputs,
            level=level,
            budget=budget,
            budget_ms=budget_ms,
            threshold=threshold,
            max_loss=max_loss,
            batch_size=batch_size,
            output=output,
            table=table,
            plot=plot,
        )
        report = predictor.predict(request)
    except (ValueError, OSError, FederationError) as error:
        typer.echo(f"nestfl predict: {error}", err=True)
        raise typer.Exit(2) from None
    typer.echo(predictor.as_json(report)) if json else predictor.show(report)
