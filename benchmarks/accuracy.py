"""Accuracy of several strategies on the same data, over seeds, side by side.

    python -m benchmarks.accuracy --strategies scalefl,heterofl --seeds 0,1,2 -- rounds=20

Each federation runs in one process, with the real ClientApp and without Ray: the weights are those
of `nestfl run` with the same settings, since they do not depend on who runs a client. Processes
share the cores. What follows `--` are overrides. All but ScaleFL have levels of `--widths`
which cost what its levels cost, as its authors did for their baselines.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any


def run(overrides: str) -> dict[str, Any]:
    """One federation in this process; its summary."""
    from nestfl.local_engine import LocalGrid
    from server_app import app as server
    from server_app.config.composing import compose
    from server_app.record.run_record import RunRecord
    from server_app.record.summary import summarise

    config = compose(overrides)
    began = time.perf_counter()
    server.run(LocalGrid(config.fleet.clients), config)
    record = RunRecord(Path(config.output) / str(config.name))
    return {**summarise(record.metrics()), "wall": time.perf_counter() - began}


def in_a_process(overrides: str, directory: Path, name: str) -> dict[str, Any]:
    """The summary of a run, from its file if it was run already."""
    found = directory / f"{name}.json"
    if not found.exists():
        command = [sys.executable, "-m", "benchmarks.accuracy", "--one", str(found),
                   f"{overrides} output={directory}/runs name={name}"]  # fmt: skip
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    summary: dict[str, Any] = json.loads(found.read_text())
    return summary


def row(summaries: list[dict[str, Any]]) -> str:
    """Mean and spread over seeds of each score, in percent."""

    def score(values: list[float]) -> str:
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        return f"{100 * statistics.mean(values):6.2f} ±{100 * spread:5.2f}"

    cells = [score([each[kind] for each in summaries]) for kind in ("local", "global")]
    cells += [
        score([each["levels"][level]["accuracy"] for each in summaries])
        for level in summaries[0]["levels"]
    ]
    return " | ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--one", type=Path)
    parser.add_argument("--strategies", default="scalefl,heterofl,decoupled,fedavg")
    parser.add_argument("--widths", default="0.35,0.5,0.7,1.0")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--output", type=Path, default=Path("runs/accuracy"))
    parser.add_argument("overrides", nargs="*")
    given = parser.parse_args()
    if given.one:
        summary = run(" ".join(given.overrides))
        given.one.parent.mkdir(parents=True, exist_ok=True)
        given.one.write_text(json.dumps(summary))
        return
    strategies, seeds = given.strategies.split(","), given.seeds.split(",")

    def one(pair: tuple[str, str]) -> dict[str, Any]:
        strategy, seed = pair
        levels = f"strategy.ratios=null strategy.widths=[{given.widths}] strategy.rounding=ceil"
        levels = "" if strategy == "scalefl" else levels
        overrides = f"strategy={strategy} {levels} seed={seed} {' '.join(given.overrides)}"
        return in_a_process(overrides, given.output.resolve(), f"{strategy}-{seed}")

    given.output.mkdir(parents=True, exist_ok=True)
    pairs = sorted(product(strategies, seeds), key=lambda pair: pair[1])  # seed by seed
    with ThreadPoolExecutor(given.processes) as pool:
        found = dict(zip(pairs, pool.map(one, pairs), strict=True))
    print(f"{'strategy':12} | {'local':13} | {'global':13} | levels on the server's test set")
    for strategy in strategies:
        summaries = [found[strategy, seed] for seed in seeds]
        minutes = statistics.mean(each["wall"] for each in summaries) / 60
        print(f"{strategy:12} | {row(summaries)} | {minutes:.1f} min")


if __name__ == "__main__":
    main()
