"""Defines the ClientApp: it answers query, train and evaluate messages for one slice."""

from __future__ import annotations

import logging
from dataclasses import replace

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor

from client_app.attacks import amplified, poisoned
from client_app.memory import Memory
from client_app.node_config import NodeConfig
from client_app.offers import NotOfferedError, granted, reasons_kept_here
from data.clients import ClientData, client_data, device_data
from data.spec import DatasetSpec
from models.families import SlicedNetwork
from models.loading import form_of, load_network
from protocol import failures
from protocol.arrays import pack, unpack
from protocol.records import ARRAYS
from protocol.reports import Evaluation, Personal, Profile, Trained
from protocol.work import Work, made
from strategies.registry import method
from training.devices import choose_device, set_threads
from training.fitting import fit
from training.local_training import LocalTraining
from training.testing import (
    evaluate,
    gather_statistics,
    with_own_statistics,
    with_statistics_after_training,
)

app = ClientApp()
failures.shorten(logging.getLogger("flwr"))


@app.query()
def introduce(message: Message, context: Context) -> Message:
    """Describe this device: its data and its budget."""
    set_threads()
    work, node = asked(message, context), NodeConfig.read(context.node_config)
    data, budget = own_data(work, context), own_budget(work, context)
    profile = Profile(
        partition=node.partition,
        partitions=node.partitions,
        examples=len(data.train),
        budget=budget,
        device=str(choose_device(work.train.device)),
        validation=len(data.validation),
        test=len(data.test),
        measured=budget is not None and node.budget is None,
    )
    return Message(RecordDict({"profile": profile.record()}), reply_to=message)


@app.query("method")
def answer(message: Message, context: Context) -> Message:
    """Answer a question of the method's server half, such as the architecture that it chooses."""
    set_threads()
    work = asked(message, context)
    net = network_of(message, work) if ARRAYS in message.content else None
    chosen, data = method(work.method), own_data(work, context).train
    training = chosen.Training(made(chosen.Settings, work.settings), work, data, {})
    return Message(training.answer(net), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the slice on this device's data with its method's training, and send it back."""
    work, net = received(message, context)
    own, chosen = own_data(work, context), method(work.method)
    data = own.train if work.sabotage is None else poisoned(own.train, work.sabotage)
    memory = Memory(own_name(context), work.recall)
    recalled = memory.recall()
    device = choose_device(work.train.device)
    here = {name: tensor.to(device) for name, tensor in (recalled or {}).items()}
    training = chosen.Training(made(chosen.Settings, work.settings), work, data, here)
    training.begin(net.to(device))
    report = fit(net, data, training.loss, work.train, work.round, work.seed, training.moved(net))
    personal = tested_by_itself(net, own, training) if work.personal else None
    state = training.reply(net)
    if work.sabotage is not None:
        state = amplified(state, sent_state(message, work), work.sabotage)
    memory.keep(work.round, training.memory)
    trained = Trained(
        report.examples,
        report.loss,
        report.seconds,
        forgot=recalled is None,
        classes=training.classes,
        personal=personal,
    )
    content = RecordDict({"arrays": pack(state), "metrics": trained.record()})
    return Message(content, reply_to=message)


def tested_by_itself(
    net: SlicedNetwork, own: ClientData, training: LocalTraining
) -> Personal | None:
    """Return the scores of the trained slice on this device's test part; None if it has none.

    Logits are treated as in the training's loss (`training.answers`).
    """
    work = training.work
    settled = with_statistics_after_training(net, own.train, work.train, work.statistics)
    ensemble = training.settings.ensemble
    reports = evaluate(settled, own.test, work.train, ensemble, training.answers)
    return Personal(reports[-1].accuracy, reports[-1].loss) if reports else None


@app.evaluate()
def test(message: Message, context: Context) -> Message:
    """Evaluate every exit of the slice on the requested part of this device's data."""
    work, net = received(message, context)
    data = own_data(work, context)
    if work.statistics == "own":
        net = with_own_statistics(net, data.train, work.train)
    parts = {"test": data.test, "validation": data.validation}
    settings = made(method(work.method).Settings, work.settings)
    reports = evaluate(net, parts[work.part], work.train, settings.ensemble)
    if not reports:
        raise ValueError(f"this client has no {work.part} examples")
    found = Evaluation(
        reports[0].examples,
        tuple(report.accuracy for report in reports),
        tuple(report.loss for report in reports),
    )
    return Message(RecordDict({"metrics": found.record()}), reply_to=message)


@app.query("statistics")
def statistics(message: Message, context: Context) -> Message:
    """Gather the slice's norm statistics over this device's training data (HeteroFL)."""
    work, net = received(message, context)
    gathered, examples = gather_statistics(net, own_data(work, context).train, work.train)
    trained = Trained(examples, 0.0, 0.0)
    content = RecordDict({"arrays": pack(gathered), "metrics": trained.record()})
    return Message(content, reply_to=message)


def asked(message: Message, context: Context) -> Work:
    """Return the work of a message, limited to the requests that this device's owner allows."""
    return granted(Work.read(message.content), NodeConfig.read(context.node_config))


def received(message: Message, context: Context) -> tuple[Work, SlicedNetwork]:
    """Return the work of a message, and its slice as a network."""
    set_threads()
    work = asked(message, context)
    return work, network_of(message, work)


def network_of(message: Message, work: Work) -> SlicedNetwork:
    """Return the network of a message's slice."""
    return load_network(work.task, work.slice, sent_state(message, work))


def sent_state(message: Message, work: Work) -> dict[str, Tensor]:
    """Return the tensors of a message."""
    return unpack(message.content.array_records["arrays"], form_of(work.task, work.slice))


def own_data(work: Work, context: Context) -> ClientData:
    """Return this device's data: its own files, or its part of the named data set."""
    node, asked = NodeConfig.read(context.node_config), work.dataset
    files = node.files_of(asked.name)
    if files is None:
        return part_of(asked, node)
    with reasons_kept_here(f"files of {asked.name}", node):
        if node.holds_parts:
            return part_of(replace(asked, path=files), node)
        return device_data(files, asked)


def part_of(dataset: DatasetSpec, node: NodeConfig) -> ClientData:
    """Return this device's part of a data set."""
    if node.partition is None or node.partitions is None:
        raise NotOfferedError(
            f"partition-id is {node.partition} and num-partitions {node.partitions} in the node "
            "config: expected data=PATH, or both partition-id and num-partitions"
        )
    if dataset.clients != node.partitions:
        dataset = replace(dataset, clients=node.partitions)
    return client_data(dataset, node.partition)


def own_name(context: Context) -> str:
    """Return a name of this client that is unique on its machine and the same in every run."""
    partition = NodeConfig.read(context.node_config).partition
    return f"node-{context.node_id}" if partition is None else f"client-{partition}"


def own_budget(work: Work, context: Context) -> float | None:
    """Return the share of the full model that this device affords: configured, or measured.

    It is None for a device that holds a partition of a named data set: the config's fleet sets it.
    """
    node = NodeConfig.read(context.node_config)
    if node.budget is not None or node.holds_parts:
        return node.budget
    from client_app.probe import measured_budget

    return measured_budget(work.task, work.train)
