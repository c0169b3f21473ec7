"""The commands of `nestfl`, and what they take."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import click

from nestfl.commands.overrides import TakesOverrides

FILE = click.Path(path_type=Path)
COUNT = click.IntRange(min=1)
TARGET_SCORES = ("mean", "worst", "full model", "cis", "local", "personal")
"""Those of nestfl/comparing/results.py, which is not loaded for a start."""
SETTINGS = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
    "show_default": True,
}


@click.group(context_settings=SETTINGS)
def app() -> None:
    """Federated learning of one network on devices that cannot all hold it."""


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
    type=int,
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
    "--tolerance", metavar="SHARE", default=0.1, help="How far a cost may be from its target."
)
@click.option("--cost", metavar="KIND", default="parameters", help="parameters, macs or memory.")
@click.option(
    "--depth-grid",
    metavar="N",
    type=int,
    help="Steps of depth to search; each unit if not given.",
)
@click.option("--width-step", metavar="STEP", default=0.05, help="Step of width to search.")
@click.option("--classes", metavar="N", default=10, help="Classes of the data.")
@click.option("--channels", metavar="N", default=3, help="Channels of an image.")
@click.option("--image-size", metavar="N", default=32, help="Height and width of an image.")
@click.option(
    "--tokens", metavar="N", default=128, help="Tokens of a text, if the network reads text."
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
        _refuse("plan", error)
    click.echo(planner.as_json(planned)) if json else planner.show(planned)


@app.command(
    cls=TakesOverrides,
    epilog="""\b
    Examples:
      nestfl run
      nestfl run strategy=heterofl model=resnet56 rounds=50 train.lr=0.05
      nestfl run fleet=small dataset=cifar10 dataset.path=cifar --workers 2
      nestfl run --resume runs/20260131-120000-scalefl-resnet20-digits rounds=100
      nestfl run engine=local rounds=2

    A wrong key or choice is answered with those that there are; conf/ holds them all.""",
)
@click.argument(
    "overrides",
    nargs=-1,
    metavar="[KEY=VALUE]...",
    help="Settings that differ from conf/, such as strategy=heterofl or train.lr=0.05.",
)
@click.option(
    "--nodes", metavar="N", type=COUNT, help="Simulated clients; those of the fleet if not given."
)
@click.option(
    "--cpus-per-client", metavar="N", type=COUNT, default=1, help="Cores that a client takes."
)
@click.option(
    "--gpus-per-client",
    metavar="SHARE",
    type=click.FloatRange(min=0),
    help="Share of a GPU that a client takes; by what training needs if not given.",
)
@click.option(
    "--workers",
    metavar="N",
    type=COUNT,
    help="Clients at a time; as many as there are cores if not given.",
)
@click.option(
    "--run-dir",
    metavar="FOLDER",
    type=FILE,
    help="Where the run's record goes; a new folder in runs/ if not given.",
)
@click.option(
    "--resume", metavar="RUN", type=FILE, help="A run directory or a checkpoint to go on from."
)
@click.option("--quiet", is_flag=True, help="Show only how it ended.")
def run(**request: Any) -> None:
    """Train in a simulation on this machine."""
    from nestfl.commands import run as runner

    raise SystemExit(runner.run(runner.Request(**request)))


@app.command(
    cls=TakesOverrides,
    epilog="""\b
    Examples:
      nestfl compare strategy=scalefl,heterofl,fedavg seed=0,1,2 rounds=30
      nestfl compare experiment=bench_digits strategy=scalefl,heterofl seed=range(0,5)
      nestfl compare strategy=heterofl strategy.dynamic=false,true seed=0,1,2 --target 0.9

    The same command goes on where it was stopped; one more seed or strategy is added to the runs
    that are there.""",
)
@click.argument(
    "overrides",
    nargs=-1,
    metavar="[KEY=VALUE,VALUE...]...",
    help="Settings that differ from conf/; of those with several values all combinations are run.",
)
@click.option(
    "--jobs",
    metavar="N",
    type=COUNT,
    help="Runs at a time; as many as there are GPUs or cores if not given, one on Ray.",
)
@click.option(
    "--baseline",
    metavar="KEY=VALUE",
    help="The choice that the others are compared to; the first strategy if not given.",
)
@click.option(
    "--target",
    metavar="SHARE",
    type=click.FloatRange(0, 1),
    help="Accuracy to reach; one that all have reached if not given.",
)
@click.option(
    "--target-score",
    type=click.Choice(TARGET_SCORES),
    default=TARGET_SCORES[0],
    help="Which accuracy is to reach it: the levels' mean if not given.",
)
def compare(**request: Any) -> None:
    """Run all combinations of settings, and show what can be said of them."""
    from nestfl.commands import compare as comparer

    raise SystemExit(comparer.compare(comparer.Request(**request)))


@app.command(
    cls=TakesOverrides,
    epilog="""\b
    Examples:
      nestfl variance strategy=serving_rate fleet=cis_7
      nestfl variance experiment=cis_table1 dataset.path=cifar --batches 64""",
)
@click.argument(
    "overrides",
    nargs=-1,
    metavar="[KEY=VALUE]...",
    help="Settings that differ from conf/, as of nestfl run.",
)
@click.option(
    "--batches", metavar="N", type=click.IntRange(min=2), help="Batches at most; all if not given."
)
@click.option("--json", is_flag=True, help="Print JSON instead of a table.")
def variance(overrides: tuple[str, ...], batches: int | None, json: bool) -> None:
    """Measure how much each exit's gradients vary over batches, before any training."""
    from nestfl.commands import variance as measurer  # imports torch: not for --help

    try:
        exits = measurer.measure(overrides, batches)
    except (ValueError, OSError) as error:
        _refuse("variance", error)
    click.echo(measurer.as_json(exits)) if json else measurer.show(exits)


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
    help="A folder of images, an image, parquet, .npz, or .csv for texts; the run's test set if "
    "not given.",
)
@click.option(
    "--level", metavar="N", type=int, help="The level that answers; the largest if not given."
)
@click.option(
    "--best", is_flag=True, help="Answer from the run's best checkpoint on validation data."
)
@click.option(
    "--budget",
    metavar="SHARE",
    type=float,
    help="Average cost: a share of the MACs of always running to the end.",
)
@click.option(
    "--budget-ms",
    metavar="MS",
    type=float,
    help="Average cost: milliseconds a sample, as measured here.",
)
@click.option(
    "--threshold",
    metavar="SHARE",
    type=float,
    help="Confidence from which on a sample leaves, at all exits.",
)
@click.option(
    "--max-loss",
    metavar="POINTS",
    type=float,
    help="The least cost that loses so many points of accuracy on validation.",
)
@click.option("--batch-size", metavar="N", default=256, help="Samples that are answered together.")
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
        _refuse("predict", error)
    click.echo(predictor.as_json(report)) if json else predictor.show(report)


@app.command(
    epilog="""\b
    Examples:
      nestfl report runs/RUN
      nestfl report runs/* --output all.html"""
)
@click.argument(
    "runs", nargs=-1, required=True, type=FILE, metavar="RUN...", help="Run directories."
)
@click.option(
    "--output",
    metavar="FILE",
    type=FILE,
    help="Where the page goes; report.html in the run's directory, or here if there are several.",
)
@click.option(
    "--best",
    is_flag=True,
    help="Show the scores after each run's best round by validation data, not after its last.",
)
@click.option(
    "--figures", metavar="FOLDER", type=FILE, help="Write the figures there as well, as SVG files."
)
def report(runs: tuple[Path, ...], output: Path | None, best: bool, figures: Path | None) -> None:
    """Make a page about a run, or about several: those that differ in their seed are averaged."""
    from nestfl.commands import report as reporter  # imports torch: not for --help

    try:
        click.echo(f"report: {reporter.report(runs, output, best, figures)}")
    except (ValueError, OSError) as error:
        _refuse("report", error)


@app.command(
    epilog="""\b
    Examples:
      nestfl runs
      nestfl runs runs/compare-seed-strategy-1f2e3d4c --csv"""
)
@click.argument(
    "folder", type=FILE, default="runs", help="Runs below it are shown, those of comparisons too."
)
@click.option("--json", is_flag=True, help="Print JSON instead of a table.")
@click.option("--csv", is_flag=True, help="Print CSV instead of a table.")
def runs(folder: Path, json: bool, csv: bool) -> None:
    """List all runs below a folder: how far they came, how good they are, how they ended."""
    from nestfl.commands import runs as lister  # without torch: it is to be fast
    from nestfl.run_list import RunList

    try:
        if json and csv:
            raise ValueError("--json and --csv are both given: expected one of them")
        found = RunList.below(folder)
    except (ValueError, OSError) as error:
        _refuse("runs", error)
    if json or csv:
        click.echo(lister.as_json(found) if json else lister.as_csv(found))
    else:
        lister.show(found)
    for problem in lister.problems(found):
        click.echo(f"nestfl runs: {problem}", err=True)


@app.command(
    epilog="""\b
    Examples:
      nestfl split runs/RUN --output parts
      nestfl split runs/RUN --output parts --exits 1,2,4 --forward 0.4,0.3"""
)
@click.argument("run", type=FILE, help="A run directory, or a checkpoint in one.")
@click.option(
    "--output", metavar="FOLDER", type=FILE, required=True, help="A new folder, one below for each."
)
@click.option("--best", is_flag=True, help="Take the run's best checkpoint on validation data.")
@click.option(
    "--exits",
    metavar="LIST",
    help="A chain of nodes at these exits, such as 1,2,4; the run's own nodes if not given.",
)
@click.option(
    "--forward",
    metavar="LIST",
    help="The share of what comes to it that each node of the chain but the last passes on.",
)
@click.option(
    "--threshold",
    metavar="SHARE",
    type=float,
    help="Confidence from which on all nodes answer; by the nodes' rates if not given.",
)
def split(**request: Any) -> None:
    """Split a trained network into the parts of the nodes that serve it."""
    from nestfl.commands import split as splitter  # imports torch: not for --help
    from strategies.federation import FederationError

    try:
        written = splitter.split(splitter.Request(**request))
    except (ValueError, OSError, FederationError) as error:
        _refuse("split", error)
    splitter.show(written, request["output"])


@app.command(
    epilog="""\b
    Examples:
      nestfl serve parts
      nestfl serve parts/cloud --cert node.pem --key node.key --token-file token
      nestfl serve parts/device --parent https://edge.example:8443 --ca ca.pem ..."""
)
@click.argument(
    "folder", type=FILE, help="A node's part; or the folder of all, to try them on this machine."
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:8443",
    help="Where; of a tree the first port.",
)
@click.option(
    "--parent",
    metavar="[NAME=]URL",
    multiple=True,
    help="Where a parent is, such as https://edge.example:8443.",
)
@click.option("--alone", is_flag=True, help="Do without the parents, and answer all here.")
@click.option("--cert", metavar="FILE", type=FILE, help="This node's certificate.")
@click.option("--key", metavar="FILE", type=FILE, help="The key of the certificate.")
@click.option("--ca", metavar="FILE", type=FILE, help="What signed the parents' certificates.")
@click.option(
    "--token-file", metavar="FILE", type=FILE, help="The token that whoever asks this node has."
)
@click.option(
    "--parent-token-file",
    metavar="FILE",
    type=FILE,
    help="The parents' token; this node's if not given.",
)
@click.option(
    "--parent-timeout",
    metavar="SECONDS",
    type=click.FloatRange(min=0, min_open=True),
    default=2.0,
    help="How long a parent's answer is waited for.",
)
@click.option("--half", is_flag=True, help="Send features with 16 bits each, not 32.")
@click.option(
    "--threshold", metavar="SHARE", type=float, help="In place of the threshold of the part."
)
@click.option(
    "--max-transfer",
    metavar="RATE",
    type=float,
    help="The most samples a second to pass on; that of the part if not given.",
)
@click.option(
    "--batch", metavar="N", type=COUNT, default=64, help="Samples of a request, and at once."
)
@click.option(
    "--wait-ms",
    metavar="MS",
    type=click.FloatRange(min=0),
    default=0.0,
    help="How long a batch waits for more samples.",
)
@click.option(
    "--most-waiting", metavar="N", type=COUNT, default=1024, help="Samples that may wait."
)
@click.option("--threads", metavar="N", type=COUNT, help="Of torch; as many as cores if not given.")
@click.option("--ray", is_flag=True, help="Serve as a deployment of Ray Serve.")
@click.option("--replicas", metavar="N[..M]", default="1", help="With --ray: how many replicas.")
def serve(**request: Any) -> None:
    """Answer requests: run a node, or a whole tree of them on this machine."""
    from nestfl.commands import serve as server

    try:
        server.serve(server.Request(**request))
    except (ValueError, OSError) as error:
        _refuse("serve", error)


@app.command(
    epilog="""\b
    Examples:
      nestfl fingerprint
      nestfl fingerprint ../nestfl-1.2
      nestfl fingerprint nestfl.nestfl.0-1-0.95e48e9f.fab
      nestfl fingerprint --copy app"""
)
@click.argument(
    "code",
    required=False,
    type=FILE,
    help="A checkout, or a bundle that `flwr build` made; this checkout if not given.",
)
@click.option(
    "--copy",
    metavar="FOLDER",
    type=FILE,
    help="Copy the checkout's app, and nothing else, there: `flwr run FOLDER` submits it faster.",
)
def fingerprint(code: Path | None, copy: Path | None) -> None:
    """Print what tells the code that a run sends from all other: devices can pin it."""
    from nestfl.bundle import CHECKOUT, copy_app
    from nestfl.guarded.pinned_code import fingerprint_of

    try:
        if copy is not None:
            copy_app(code or CHECKOUT, copy)
        click.echo(fingerprint_of(code or CHECKOUT))
    except (ValueError, OSError) as error:
        _refuse("fingerprint", error)


def _refuse(command: str, error: Exception) -> NoReturn:
    click.echo(f"nestfl {command}: {error}", err=True)
    raise SystemExit(2)
