"""A client of Flower's FedAvg that does nestfl's work, in one app with nestfl's own client."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import client_app.app as nestfl_client
from data.clients import ClientData, client_data
from models import Slice, SlicedNetwork
from server_app.config.composing import compose
from strategies.federation import Federation
from training.devices import set_threads
from training.fitting import fit
from training.local_training import plain_loss

CLIENTS = 10
PLAN = (
    f"strategy=fedavg strategy.ratios=[1.0] fleet.budgets=[1.0] fleet.shares=[1] "
    f"fleet.clients={CLIENTS} clients_per_round={CLIENTS} weighting=examples train.epochs=1"
)

app = ClientApp()
app.query()(nestfl_client.introduce)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train with the client of the server that asks: nestfl's server sends its work along."""
    if "work" in message.content:
        return nestfl_client.train(message, context)
    return stock_train(message, context)


def stock_train(message: Message, context: Context) -> Message:
    """Train as in Flower's examples, with nestfl's loop."""
    set_threads()
    settings, net = given().train, network()
    data = own_data(int(context.node_config["partition-id"])).train
    net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    number = int(str(message.content.config_records["config"]["server-round"]))
    report = fit(net, data, plain_loss, settings, number, seed=number)
    metrics = MetricRecord({"loss": report.loss, "num-examples": report.examples})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content, reply_to=message)


@lru_cache(1)
def given() -> Federation:
    return compose(PLAN)


@lru_cache(1)
def network() -> SlicedNetwork:
    return given().task.build(Slice())


@lru_cache(CLIENTS)
def own_data(client: int) -> ClientData:
    return client_data(replace(given().dataset, clients=CLIENTS), client)
