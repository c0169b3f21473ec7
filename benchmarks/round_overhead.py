"""Compares a nestfl round, with the full network for all clients, with a round of Flower's FedAvg.

Both train the same network on the same data with the same loop, in one simulation, in turns. The
stock client is as fast as possible: it keeps its network and its data between messages.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from benchmarks.simulated_fleet import nested_strategy, simulate
from benchmarks.stock_client import CLIENTS, PLAN, app, network

TURNS, TARGET = 15, 1.0


class TimedFedAvg(FedAvg):
    """Flower's FedAvg, timed from before its messages are made until their mean is computed."""

    seconds = 0.0

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        self.began = time.perf_counter()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        found = super().aggregate_train(server_round, replies)
        self.seconds = time.perf_counter() - self.began
        return found


def main(grid: Grid) -> None:
    nested = nested_strategy(PLAN)
    nested.roster.enrol(grid, patience=600)
    stock = TimedFedAvg(fraction_evaluate=0.0, min_available_nodes=CLIENTS)
    arrays = ArrayRecord(network().state_dict())
    times: dict[str, list[float]] = {"nestfl": [], "Flower's FedAvg": []}

    def nestfl_round() -> float:
        began = time.perf_counter()
        nested.train_round(nested.round + 1, grid)
        return time.perf_counter() - began

    def stock_round() -> float:
        nonlocal arrays
        arrays = stock.start(grid, arrays, num_rounds=1).arrays
        return stock.seconds

    contenders = [("nestfl", nestfl_round), ("Flower's FedAvg", stock_round)]
    for turn in range(TURNS + 2):
        for name, run in contenders:
            seconds = run()
            if turn >= 2:  # the first turns warm up
                times[name].append(seconds)
        contenders.reverse()  # each one is first in half of the turns
    print(f"rounds of {CLIENTS} clients, full ResNet-20 for all, medians of {TURNS} turns:")
    for name, taken in times.items():
        print(f"  {name:16} {1000 * statistics.median(taken):7.0f} ms")
    ratio = statistics.median(a / b for a, b in zip(*times.values(), strict=True))
    print(f"  nestfl takes {ratio:.2f} of FedAvg's time, target at most {TARGET}", flush=True)


if __name__ == "__main__":
    simulate(CLIENTS, main, app)
