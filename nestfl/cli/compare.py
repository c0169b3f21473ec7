"""`nestfl compare`, and what it takes."""

from __future__ import annotations

from typing import Any

import click

from nestfl.cli.group import app
from nestfl.cli.options import A_SHARE, THREAD_COUNT, plugin_option
from nestfl.commands.overrides import TakesOverrides

TARGET_SCORES = ("mean", "worst", "full model", "cis", "local", "personal")
"""Those of nestfl/comparing/results.py, which is not loaded for a start."""


@app.command(
    cls=TakesOverrides,
    epilog="""\b
    Examples:
      nestfl compare strategy=scalefl,heterofl,fedavg seed=0,1,2 rounds=30
      nestfl compare experiment=bench_digits strategy=scalefl,heterofl seed=range(0,5)
      nestfl compare strategy=heterofl strategy.dynamic=false,true seed=0,1,2 --target 0.9
      nestfl compare strategy=scalefl,heterofl scalefl.beta=0,0.1 heterofl.dynamic=true seed=0,1,2

    NAME.OPTION is strategy.OPTION for the runs of that strategy alone.

    The same command goes on where it was stopped; one more seed or strategy is added to the runs
    that are there.""",
)
@click.argument(
    "overrides",
    nargs=-1,
    metavar="[KEY=VALUE,VALUE...]...",
    help="Settings that differ from conf/; of those with several values all combinations are run. "
    "NAME.OPTION is for the strategy NAME alone.",
)
@click.option(
    "--jobs",
    metavar="N",
    type=THREAD_COUNT,
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
    type=A_SHARE,
    help="Accuracy to reach; if not given one that all have reached, but not below chance.",
)
@click.option(
    "--target-score",
    type=click.Choice(TARGET_SCORES),
    default=TARGET_SCORES[0],
    help="Which accuracy is to reach it: the levels' mean if not given.",
)
@plugin_option(expose=True)
def compare(**request: Any) -> None:
    """Run all combinations of settings, and show what can be said of them."""
    from nestfl.commands import compare as comparer

    raise SystemExit(comparer.compare(comparer.Request(**request)))
