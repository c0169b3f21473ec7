"""Checks a run's configuration, data and network before any process starts.

Slow results are kept in the cache (data/cache.py) for the run: decoded data, the partition, and the
plan.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from rich.filesize import decimal

import plugins
from data.cache import Arrays
from data.clients import examples_of_clients, global_test
from data.digest import digest_of
from data.examples import Examples, TextData
from models import Task
from protocol.reports import Profile
from server_app.building import strategy_of
from server_app.config.composing import Config
from server_app.config.typed import ConfigError
from server_app.config.weights import read_weights
from server_app.record.checkpoint import Checkpoint
from server_app.report.amounts import counted
from server_app.resume import start_of
from strategies.coverage import require_full_model
from strategies.federation import FederationError, named
from strategies.levels.cost import training_memory
from strategies.levels.plan_cache import kept
from strategies.methods.choosing.choosing import ChoosingStrategy
from strategies.network_checks import checks_before_a_run, findings
from strategies.nodes.enrolment import Client
from strategies.round import NestedStrategy


@dataclass(frozen=True)
class Checked:
    """A run that can start, with the results of its checks."""

    config: Config
    start: Checkpoint | None
    """The checkpoint of a resumed run."""
    test: Examples
    """The server's test examples."""
    examples: list[int]
    """Training examples of each simulated client."""
    strategy: NestedStrategy

    def lines(self) -> list[str]:
        """Return a summary in a few lines."""
        config, task, sizes = self.config, self.config.task, self.examples
        weights = f", weights of {config.model.weights}" if config.model.weights else ""
        few, many = min(sizes), max(sizes)
        each = f"{few:,}" if few == many else f"{few:,} to {many:,}"
        return [
            f"network: {task.model}, {task.units} units, {self.strategy.settings.name}{weights}",
            *self._levels(),
            f"data:    {config.dataset.name}, {config.dataset.path or 'as published'}, "
            f"{task.num_classes:,} classes, {len(self.test):,} examples to test on",
            f"clients: {len(sizes)}, {each} examples each ({config.dataset.partition}), "
            f"{min(config.clients_per_round, len(sizes))} a round",
            *([f"goes on: after round {self.start.round}"] if self.start else []),
        ]

    def _levels(self) -> list[str]:
        """Return the cost and the clients of each level."""
        if not self.strategy.levels:
            return ["levels:  what the clients choose when they come"]
        coverage, settings = self.strategy.coverage, self.strategy.settings
        full = coverage.levels[-1].cost.of(settings.cost)
        return [
            f"level {each.number}: {each.cost.parameters:,} parameters, "
            f"{each.cost.macs / 1e6:,.1f} M MACs, "
            f"{decimal(training_memory(each.cost, self.config.train))} to train, "
            f"{each.cost.of(settings.cost) / full:.3g} of the full {settings.cost}, "
            f"{counted(coverage.held[each.number], 'client')}"
            for each in coverage.levels
        ]


def check(config: Config, nodes: int | None = None) -> Checked:
    """Return the checked start of a run with these simulated clients, or raise `ConfigError`."""
    nodes = config.fleet.clients if nodes is None else nodes
    try:
        start = start_of(config)
        if start is None:
            check_network(config.task)
        place = config.model.weights if not start else None
        weights = read_weights(place) if place else None
        test = global_test(config.dataset)
        if start is None and config.dataset.is_own:
            digest_of(config.dataset)  # the run's record has it
        examples = examples_of_clients(replace(config.dataset, clients=nodes))
        with named("strategy"):
            config.strategy.check_files(config)
        strategy = strategy_of(config, weights=weights, start=start)  # they must fit
        simulate(strategy, examples)
        check_tokens(strategy, test)
        return Checked(config, start, test, examples, strategy)
    except FederationError as error:
        raise ConfigError(str(error)) from error


def check_network(task: Task) -> None:
    """Raise if a plugin's network lacks a property of slicing; a network is checked once."""
    if task.model in plugins.offered("model"):
        kept("network", task, None, lambda: _properties(task))


def _properties(task: Task) -> Arrays:
    """Check the properties of slicing that are quick enough for a start; return an empty result."""
    with torch.random.fork_rng(devices=[]):
        for found in findings(task, plugins.where_in_plugins, checks_before_a_run(task)):
            if found.wrong:
                raise ConfigError(
                    f"model {task.model} cannot be sliced: {found.name}: {found.wrong}; "
                    "`nestfl check-model` shows all that it lacks"
                )
    return {}


def simulate(strategy: NestedStrategy, examples: list[int]) -> None:
    """Enrol simulated clients; raise if they do not suffice for the run."""
    federation, roster = strategy.federation, strategy.roster
    for number, size in enumerate(examples):
        profile = Profile(number, len(examples), size, budget=None, device="")
        roster.clients[number] = Client(number, number, profile)
    roster.require_clients()
    if isinstance(strategy, ChoosingStrategy):
        return  # its levels depend on the clients' choices
    strategy.prepare()
    roster.require_levels(strategy.coverage.trained_by(strategy.clients))
    clients = strategy.clients.values()
    require_full_model(federation, strategy.settings, strategy.coverage, clients)


def check_tokens(strategy: NestedStrategy, test: Examples) -> None:
    """Raise if texts have tokens that the network does not know."""
    if not isinstance(test, TextData) or not len(test) or not strategy.levels:
        return
    row = int(test.tokens.max(1).values.argmax())
    tokens, _ = next(test.at(torch.tensor([row])).batches(1))
    with torch.no_grad():
        strategy.network(1).eval()(tokens)
