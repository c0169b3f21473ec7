"""Measures clients per second in rounds of 1,000 simulated nodes that only echo, by `in_flight`.

`in_flight` is the number of messages sent at a time. Its values take turns in one simulation.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace

from flwr.serverapp import Grid

from benchmarks.simulated_fleet import echo, nested_strategy, simulate

NODES, SAMPLED, TURNS = 1000, 100, 3
NUMBERS = (4, 8, 16, 32, 100)


def main(grid: Grid) -> None:
    federated = nested_strategy(
        f"fleet.clients={NODES} clients_per_round={SAMPLED} strategy=fedavg"
    )
    started = time.perf_counter()
    federated.roster.enrol(grid, patience=600)
    print(f"{len(federated.clients)} nodes enrolled in {time.perf_counter() - started:.1f} s")
    rates: dict[int, list[float]] = {in_flight: [] for in_flight in NUMBERS}
    for _ in range(TURNS):
        for in_flight in NUMBERS:
            federated.federation = replace(federated.federation, in_flight=in_flight)
            started = time.perf_counter()
            federated.train_round(federated.round + 1, grid)
            rates[in_flight].append(SAMPLED / (time.perf_counter() - started))
    print(f"rounds of {SAMPLED} clients out of {NODES} nodes, median of {TURNS}:")
    for in_flight, found in rates.items():
        print(f"  in_flight {in_flight:4}  {statistics.median(found):6.1f} clients/s", flush=True)


if __name__ == "__main__":
    simulate(NODES, main, echo)
