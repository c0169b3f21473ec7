"""Measures the share of a comparison's core time that is training and evaluation.

    python -m benchmarks.comparison [KEY=VALUE,VALUE ...]

The rest is the comparison's overhead: starts of processes, plans, messages, sums, records, reports.
A slot that waits for the last runs counts as overhead, too, so use as many runs as slots, or many.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from nestfl.launching.gpus import cores

TARGET = 0.9
PRESET = ["experiment=bench_digits", "strategy=scalefl,heterofl,decoupled,fedavg"]


def inside(run: Path) -> tuple[float, float]:
    """Return the seconds of a run's training, and of its tests."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    slices = [part for line in lines for part in line["slices"].values()]
    trained = sum(part["device_seconds"] for part in slices)
    return trained, sum(line["test_seconds"] for line in lines)


def main() -> None:
    overrides = sys.argv[1:] or PRESET
    jobs = cores()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "nestfl", "compare", *overrides, "--jobs", str(jobs)]
        began = time.perf_counter()
        subprocess.run([*command, f"output={folder}", "name=measured"], check=True)
        available = jobs * (time.perf_counter() - began)
        runs = sorted(file.parent for file in Path(folder).glob("measured/*/metrics.jsonl"))
        trained, tested = (sum(seconds) for seconds in zip(*map(inside, runs), strict=True))
    share = (trained + tested) / available
    print(
        f"{len(runs)} runs, {jobs} at a time: {trained / available:.2f} of the core time is "
        f"training, {tested / available:.2f} evaluation, together {share:.2f} "
        f"(wanted: at least {TARGET})"
    )


if __name__ == "__main__":
    main()
