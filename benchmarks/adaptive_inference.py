"""Compares early exits with always running to the end, on trained runs: accuracy, throughput.

    python -m benchmarks.adaptive_inference [RUN ...]

A RUN is a directory that `nestfl run` made; without one, the default federation is trained first.
The thresholds are the cheapest that lose at most TOLERANCE points on the clients' validation parts.
Accuracy and time are measured on the test set; both sides take turns on each batch.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from data.clients import global_test
from data.inputs import Inputs
from server_app.predictor import TO_THE_END, Predictor, side_by_side
from server_app.trained_level import load_level

TOLERANCE = 0.3
"""Points of accuracy that thresholds may lose on validation data (target on test data: 0.5)."""
SINGLES = 200
"""Test samples that are answered one at a time."""


def measure(run: Path) -> None:
    level = load_level(run)
    batched, single = Predictor(level, 256), Predictor(level, 1)
    plans = [batched.plan_for_loss(TOLERANCE), TO_THE_END]
    test = global_test(level.dataset)
    answers, in_batches = side_by_side(batched, test, plans)
    inputs = Inputs(test, tuple(map(str, range(len(test)))))
    early, last = (
        batched.judge(each, plan, inputs) for each, plan in zip(answers, plans, strict=True)
    )
    few = global_test(replace(level.dataset, max_test=min(SINGLES, len(test))))
    _, one_by_one = side_by_side(single, few, plans)
    left = " ".join(f"{share:.0%}" for share in early.exits)
    assert early.accuracy is not None
    assert last.accuracy is not None
    print(f"{run.name}: {level.task.model}, exits after {level.exits}, {len(test)} test samples")
    print(f"  accuracy           {early.accuracy:.2%} against {last.accuracy:.2%}")
    print(f"  left at each exit  {left}")
    print(f"  MACs               {early.share:.3f} of the last exit's alone")
    for name, (ours, full) in {"in batches of 256": in_batches, "one by one": one_by_one}.items():
        print(f"  {name:18} {full / ours:.2f} times the throughput")


def train(folder: Path) -> Path:
    from nestfl.local_engine import LocalGrid
    from server_app import app as server
    from server_app.config.composing import compose

    config = compose(f"output={folder} name=digits evaluate.every=0 report=false")
    server.run(LocalGrid(config.fleet.clients), config)
    return folder / "digits"


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for run in map(Path, sys.argv[1:]) if sys.argv[1:] else [train(Path(folder))]:
            measure(run)


if __name__ == "__main__":
    main()
