"""Clients per second of a round over 1,000 simulated nodes that only echo, by window.

The window is what `window` in conf/config.yaml sets. Windows take turns in one simulation.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

from flwr.serverapp import Grid

from benchmarks.simulation import echo, nested_strategy, simulate

NODES, SAMPLED, TURNS = 1000, 100, 3
WINDOWS = (4, 8, 16, 32, 100)


def main(grid: Grid) -> None:
    federated = nested_strategy(
        f"fleet.clients={NODES} clients_per_round={SAMPLED} strategy=fedavg"
    )
    started = time.perf_counter()
    federated.roster.enrol(grid, patience=600)
    print(f"{len(federated.clients)} nodes enrolled in {time.perf_counter() - started:.1f} s")
    rates: dict[int, list[float]] = {window: [] for window in WINDOWS}
    for _ in range(TURNS):
        for window in WINDOWS:
            federated.federation = replace(federated.federation, in_flight=window)
            started = time.perf_counter()
            federated.train_round(federated.round + 1, grid)
            rates[window].append(SAMPLED / (time.perf_counter() - started))
    print(f"rounds of {SAMPLED} clients out of {NODES} nodes, median of {TURNS}:")
    for window, found in rates.items():
        print(f"  window {window:4}  {statistics.median(found):6.1f} clients/s", flush=True)


if __name__ == "__main__":
    simulate(NODES, main, echo)
