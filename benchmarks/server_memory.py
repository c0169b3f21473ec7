"""Measures the server's peak memory with 200 simulated clients against 20: a 10 MB slice each.

Clients echo their slice. Each fleet runs in a process of its own that holds the strategy, as in
`flwr run`. Ray's workers and its object store are other processes and are not counted.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from flwr.serverapp import Grid

from benchmarks.simulated_fleet import echo, nested_strategy, simulate

FLEETS, ROUNDS, TARGET = (20, 200), 2, 1.3
PLAN = "model=resnet18 strategy=heterofl strategy.widths=[0.475,1.0] fleet.budgets=[0.25,1.0]"


def own_megabytes() -> float:
    """Return this process's memory without the object store's shared pages."""
    lines = Path("/proc/self/status").read_text().splitlines()
    kilobytes = {line.split(":")[0]: line.split()[1] for line in lines if line.endswith(" kB")}
    return (int(kilobytes["VmRSS"]) - int(kilobytes["RssShmem"])) / 1024


class Peak:
    """The peak memory of this process while it is watched."""

    def __init__(self) -> None:
        self.megabytes, self._done = 0.0, threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(0.005):
            self.megabytes = max(self.megabytes, own_megabytes())


def measure(clients: int) -> None:
    """Print the peak over some rounds in which all clients take part."""

    def main(grid: Grid) -> None:
        federated = nested_strategy(
            f"{PLAN} fleet.clients={clients} clients_per_round={clients} fleet.shares=[1,0]"
        )
        federated.roster.enrol(grid, patience=600)
        before = own_megabytes()
        with Peak() as peak:
            for number in range(1, ROUNDS + 1):
                federated.train_round(number, grid)
        tally = federated.tally
        assert tally.accepted == clients, tally
        print(
            "peak",
            peak.megabytes,
            before,
            sum(part.up for part in tally.slices.values()) / clients / 1e6,
            flush=True,
        )

    simulate(clients, main, echo)


def main() -> None:
    peaks = []
    for clients in FLEETS:
        command = [sys.executable, "-m", "benchmarks.server_memory", str(clients)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        line = next(line for line in output.splitlines() if line.startswith("peak "))
        peak, before, size = map(float, line.split()[1:])
        print(
            f"{clients:4} clients of {size:.1f} MB: server's peak {peak:.0f} MB, "
            f"{peak - before:.0f} MB above what it held before the round",
            flush=True,
        )
        peaks.append(peak)
    print(f"{peaks[1] / peaks[0]:.2f}x, target at most {TARGET}x")


if __name__ == "__main__":
    measure(int(sys.argv[1])) if sys.argv[1:] else main()
