"""Compares the defences with the nested mean: time and peak memory, with 8 and 64 replies.

Replies are ResNet-18 slices of four widths with some noise. Each case runs in a process of its own:
first with two replies, which compiles the loops, then for the record. Seconds are processor time,
since machines are shared.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import torch

from benchmarks.server_memory import Peak, own_megabytes
from models import Slice, build, extract, slice_map
from strategies.aggregation.aggregators import AggregationConfig
from strategies.aggregation.update import Update

WIDTHS, REPLIES = (1.0, 0.5, 0.25, 0.125), (8, 64)
CASES = {
    "nested-mean": AggregationConfig(),
    "norm-bound": AggregationConfig("norm-bound"),
    "clipped": AggregationConfig("clipped", {"times": 1e-3}),
    "clipped to median": AggregationConfig("clipped", {"of": "median"}),
    "trimmed-mean": AggregationConfig("trimmed-mean"),
    "median": AggregationConfig("median"),
}


def measure(case: str, replies: int) -> None:
    """Print the seconds of adding and of the result, and the peak memory above the start's."""
    full = build("resnet18", 10)
    state = full.state_dict()
    maps = [
        slice_map(full, build("resnet18", 10, slice=Slice(width=width), device="meta"))
        for width in WIDTHS
    ]

    def updates(count: int) -> Iterator[Update]:
        for number in range(count):
            level = number % len(maps)
            sent = extract(state, maps[level])
            noisy = {k: v + 0.01 * torch.randn_like(v) if v.ndim else v for k, v in sent.items()}
            yield Update(noisy, maps[level], level=len(maps) - level, start=state)

    first = CASES[case].make()
    for update in updates(2):
        first.add(update)
    first.result(state)
    del first, update
    adding, before = 0.0, own_megabytes()
    with Peak() as peak:
        aggregator = CASES[case].make()
        for update in updates(replies):
            began = time.process_time()
            aggregator.add(update)
            adding += time.process_time() - began
        began = time.process_time()
        aggregator.result(state)
        ending = time.process_time() - began
    print("cost", adding, ending, peak.megabytes - before, flush=True)


def main() -> None:
    for replies in REPLIES:
        plain, memory = 0.0, 0.0
        for case in CASES:
            command = [sys.executable, "-m", "benchmarks.defences", case, str(replies)]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            line = next(line for line in output.splitlines() if line.startswith("cost "))
            adding, ending, peak = map(float, line.split()[1:])
            plain, memory = plain or adding + ending, memory or peak
            print(
                f"{replies:3} replies, {case:18} add {adding:6.2f} s, result {ending:6.2f} s "
                f"({(adding + ending) / plain:5.1f}x), peak {peak:4.0f} MB ({peak / memory:.2f}x)",
                flush=True,
            )


if __name__ == "__main__":
    measure(sys.argv[1], int(sys.argv[2])) if sys.argv[1:] else main()
