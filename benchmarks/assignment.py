"""Measures the server's choice of a round's clients: sampling, levels, assignments, coverage.

The measure is processor time, which other work on the machine hardly changes. No messages are made.
HeteroFL draws a new level for each client (`strategy.dynamic=true`), which depends on the levels of
the whole fleet.

    python -m benchmarks.assignment
"""

from __future__ import annotations

import statistics
import time

from protocol.reports import Profile
from server_app.building import strategy_of
from server_app.config.composing import compose
from strategies.nodes.enrolment import Client
from strategies.round import NestedStrategy

FLEETS, SAMPLED, ROUNDS = (100, 1_000, 10_000), 100, 20
TARGET = 50.0
"""Most milliseconds of processor time per round, for the largest fleet."""
METHODS = ("scalefl", "heterofl strategy.dynamic=true", "nefl fleet.spread=1", "fjord")


def enrolled(method: str, clients: int) -> NestedStrategy:
    """Return a strategy whose clients have enrolled."""
    strategy = strategy_of(
        compose(
            f"strategy={method} fleet.clients={clients} dataset=cifar10 "
            f"clients_per_round={min(SAMPLED, clients)}"
        )
    )
    for number in range(clients):
        profile = Profile(number, clients, 50, budget=None, device="cpu")
        strategy.roster.clients[number] = Client(number, number, profile)
    strategy.prepare()
    return strategy


def milliseconds(strategy: NestedStrategy) -> list[float]:
    """Return the time of each round's choice; the first round also looks at all clients."""
    taken = []
    for number in range(1, ROUNDS + 1):
        began = time.process_time()
        strategy.coverage.trained_by(strategy.clients)
        strategy.assignments(number, list(strategy.clients), None)
        taken.append(1000 * (time.process_time() - began))
    return taken


def main() -> None:
    """Print the curve of each method, and the result of the largest fleet against the target."""
    print(f"choosing {SAMPLED} clients of a fleet: ms a round, median of {ROUNDS} (first round)")
    for method in METHODS:
        found = {clients: milliseconds(enrolled(method, clients)) for clients in FLEETS}
        told = ", ".join(
            f"{clients:,}: {statistics.median(each):.1f} ({each[0]:.0f})"
            for clients, each in found.items()
        )
        met = statistics.median(found[FLEETS[-1]]) <= TARGET
        print(f"  {method:32} {told}  {'met' if met else 'NOT met'}", flush=True)


if __name__ == "__main__":
    main()
