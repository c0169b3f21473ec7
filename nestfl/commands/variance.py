"""`nestfl variance`: measures the variance of each exit's gradients (CIS, Appendix C)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import click

from data.ranges import Range
from nestfl.commands.group import app
from nestfl.commands.shared_options import plugin_option, refuse, whole
from nestfl.commands.takes_overrides import TakesOverrides


@app.command(
    "variance",
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
    "--batches",
    metavar="N",
    type=whole(Range(2, 2**31 - 1)),
    help="Batches at most; all if not given.",
)
@plugin_option()
@click.option("--json", is_flag=True, help="Print JSON instead of a table.")
def variance_command(overrides: tuple[str, ...], batches: int | None, json: bool) -> None:
    """Measure how much each exit's gradients vary over batches, before any training."""
    try:
        exits = measure(overrides, batches)
    except (ValueError, OSError) as error:
        refuse("variance", error)
    click.echo(as_json(exits)) if json else show(exits)


@dataclass(frozen=True)
class ExitVariance:
    """An exit, the unit that it follows, and the variance of its gradients."""

    exit: int
    unit: int
    variance: float
    """Mean variance of an entry of the gradient."""
    steady: float
    """Weight of the exit by inverse variance, as a share of all exits."""
    balanced: float | None
    """Weight of the exit with `weights=balanced`; None if the fleet serves nothing."""


def measure(overrides: Sequence[str], batches: int | None) -> list[ExitVariance]:
    """Measure the variances in a run's first network, on the training examples of all clients."""
    from data.clients import all_clients
    from models.loading import network_of
    from server_app.building import strategy_of
    from server_app.config.composing import compose
    from strategies.methods.serving_rate.gradient_variances import gradient_variances
    from strategies.methods.serving_rate.serving_rate import balanced, normalised

    config = compose(" ".join(overrides))
    strategy = strategy_of(config)
    if not strategy.levels:
        raise ValueError(
            f"strategy is {config.strategy.name}, whose levels follow from its clients: there is "
            "nothing to measure before they come"
        )
    whole = strategy.whole()
    units = whole.exits or (strategy.federation.task.units,)
    full = {name: strategy.state[name] for name in strategy.submodels.first_weights(config.seed)}
    net = network_of(strategy.federation.task, whole, full)
    data = all_clients(config.dataset).train
    variances = gradient_variances(net, data, config.train, len(units), config.seed, batches)
    steady = normalised([1 / variance for variance in variances])
    topology = config.fleet.topology
    weights: Sequence[float | None] = [None] * len(units)
    if topology is not None and topology.exits == len(units):
        weights = balanced(topology.exit_rates, variances)
    found = zip(units, variances, steady, weights, strict=True)
    return [ExitVariance(number, *each) for number, each in enumerate(found, 1)]


def as_json(exits: Sequence[ExitVariance]) -> str:
    """Return the exits' variances as JSON."""
    return json.dumps([asdict(each) for each in exits], indent=2)


def show(exits: Sequence[ExitVariance]) -> None:
    """Print a line per exit."""
    from rich.console import Console
    from rich.table import Table

    table = Table("exit", "after unit", "variance", "share of the inverse")
    if exits[0].balanced is not None:
        table.add_column("counts, balanced")
    for column in table.columns:
        column.justify = "right"
    for each in exits:
        row = [str(each.exit), str(each.unit), f"{each.variance:.3g}", f"{each.steady:.3f}"]
        table.add_row(*row, *([] if each.balanced is None else [f"{each.balanced:.3f}"]))
    Console().print(table)
