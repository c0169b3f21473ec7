"""A nestfl round with the full network for all clients, against a round of Flower's FedAvg.

Both train the same network on the same data with the same loop, in one simulation, in turns. The
stock client is as good as one can write it: it keeps its network and its data between messages.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

import client_app.app as nestfl_client
from benchmarks.simulation import nested_strategy, simulate
from client_app.devices import set_threads
from client_app.objectives import cross_entropy
from client_app.training import fit
from data.clients import ClientData, client_data
from models import Slice, SlicedNetwork
from server_app.app import federation
from server_app.config import compose
from strategies.enrolment import enrol
from strategies.federation import Federation

CLIENTS, TURNS, TARGET = 10, 15, 1.0
PLAN = (
    f"strategy=fedavg strategy.ratios=[1.0] fleet.budgets=[1.0] fleet.shares=[1] "
    f"fleet.clients={CLIENTS} clients_per_round={CLIENTS} weighting=examples train.epochs=1"
)

app = ClientApp()
app.query()(nestfl_client.introduce)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Either client, by who asks: nestfl's server sends its work along."""
    if "work" in message.content:
        return nestfl_client.train(message, context)
    return stock_train(message, context)


def stock_train(message: Message, context: Context) -> Message:
    """As in Flower's examples, with nestfl's loop."""
    set_threads()
    settings, net = given().train, network()
    data = own_data(int(context.node_config["partition-id"])).train
    net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    round = int(str(message.content.config_records["config"]["server-round"]))
    report = fit(net, data, cross_entropy, settings, round, seed=round)
    metrics = MetricRecord({"loss": report.loss, "num-examples": report.examples})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


@lru_cache(1)
def given() -> Federation:
    return federation(compose(PLAN))


@lru_cache(1)
def network() -> SlicedNetwork:
    return given().task.build(Slice())


@lru_cache(CLIENTS)
def own_data(client: int) -> ClientData:
    return client_data(replace(given().dataset, clients=CLIENTS), client)


class TimedFedAvg(FedAvg):
    """Flower's, with a clock from before its messages are made until their mean is there."""

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
    nested.clients = enrol(grid, nested.federation, {}, patience=600)
    stock = TimedFedAvg(fraction_evaluate=0.0, min_available_nodes=CLIENTS)
    arrays = ArrayRecord(network().state_dict())
    times: dict[str, list[float]] = {"nestfl": [], "Flower's FedAvg": []}
    for turn in range(TURNS + 2):
        began = time.perf_counter()
        nested.train_round(nested.round + 1, grid)
        nested_seconds = time.perf_counter() - began
        arrays = stock.start(grid, arrays, num_rounds=1).arrays
        if turn >= 2:  # the first ones warm up
            times["nestfl"].append(nested_seconds)
            times["Flower's FedAvg"].append(stock.seconds)
    print(f"rounds of {CLIENTS} clients, full ResNet-20 for all, medians of {TURNS} turns:")
    for name, seconds in times.items():
        print(f"  {name:16} {1000 * statistics.median(seconds):7.0f} ms")
    ratio = statistics.median(a / b for a, b in zip(*times.values(), strict=True))
    print(f"  nestfl takes {ratio:.2f} of FedAvg's time, target at most {TARGET}", flush=True)


if __name__ == "__main__":
    simulate(CLIENTS, main, app)
