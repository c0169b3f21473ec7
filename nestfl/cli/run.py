"""`nestfl run`, and what it takes."""

from __future__ import annotations

from typing import Any

import click

from data.ranges import Range
from nestfl.cli.group import app
from nestfl.cli.options import CLIENT_COUNT, FILE, THREAD_COUNT, number, plugin_option
from nestfl.commands.overrides import TakesOverrides


@app.command(
    cls=TakesOverrides,
    epilog="""\b
    Examples:
      nestfl run
      nestfl run strategy=heterofl model=resnet56 rounds=50 train.lr=0.05
      nestfl run fleet=small dataset=cifar10 dataset.path=cifar --workers 2
      nestfl run --resume runs/20260131-120000-scalefl-resnet20-digits rounds=100
      nestfl run engine=local rounds=2
      nestfl run --plugin mine.py model=twin strategy=heterofl

    A wrong key or choice is answered with those that there are; conf/ holds them all.""",
)
@click.argument(
    "overrides",
    nargs=-1,
    metavar="[KEY=VALUE]...",
    help="Settings that differ from conf/, such as strategy=heterofl or train.lr=0.05.",
)
@click.option(
    "--nodes",
    metavar="N",
    type=CLIENT_COUNT,
    help="Simulated clients; those of the fleet if not given.",
)
@click.option(
    "--cpus-per-client",
    metavar="N",
    type=THREAD_COUNT,
    default=1,
    help="Cores that a client takes.",
)
@click.option(
    "--gpus-per-client",
    metavar="SHARE",
    type=number(Range(0, 1024)),
    help="Share of a GPU that a client takes; by what training needs if not given.",
)
@click.option(
    "--workers",
    metavar="N",
    type=THREAD_COUNT,
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
@plugin_option(expose=True, load=False)
@click.option("--check", is_flag=True, help="Check all that the run would start from, and stop.")
@click.option("--quiet", is_flag=True, help="Show only how it ended.")
def run(**request: Any) -> None:
    """Train in a simulation on this machine."""
    from nestfl.commands.run import run as start
    from nestfl.launching.request import Request

    raise SystemExit(start(Request(**request)))
