"""Small methods that use one seam each, for the tests to register by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from models import Slice, State
from models.families import SlicedNetwork
from strategies.aggregation.update import Update
from strategies.assignment import Assignment
from strategies.levels.cost import cost
from strategies.levels.planning import Level
from strategies.levels.submodels import Cut
from strategies.method_settings import MethodSettings, PlannedSettings
from strategies.nodes.enrolment import Client
from strategies.registry import METHODS
from strategies.round import NestedStrategy
from training.devices import PlacedNetwork
from training.local_training import LocalTraining


def register(monkeypatch: pytest.MonkeyPatch, method: type[NestedStrategy]) -> None:
    """Let a run choose a method of this file by `strategy.name`, which fedavg's YAML can set."""
    name = str(method.Settings.__dataclass_fields__["name"].default)
    monkeypatch.setitem(METHODS, name, f"{method.__module__}:{method.__qualname__}")


def settings_named(default: str) -> type[PlannedSettings]:
    @dataclass(frozen=True, kw_only=True)
    class Settings(PlannedSettings):
        name: str = default

    return Settings


# --- assignment ------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TakesTurnsSettings(MethodSettings):
    """No widths, splits or ratios: the method has a plan of its own."""

    name: str = "takes-turns"


class TakesTurns(NestedStrategy):
    """Clients train another block pattern in each round; none is a level of depth or width."""

    Settings = TakesTurnsSettings

    def plan(self) -> list[Level]:
        task = self.federation.task
        patterns = [((0, 2), (0, 1), (0,)), ((0,), (0, 2), (0, 1, 2)), None]
        slices = [Slice(blocks=blocks) for blocks in patterns]
        return [Level(n, each, each, cost(task, each)) for n, each in enumerate(slices, 1)]

    def levels_of(self, client: Client) -> Mapping[Level, float]:
        return dict.fromkeys(self.levels, 1.0)

    def assign(self, round: int, clients: Sequence[Client]) -> Iterable[Assignment]:
        for client in clients:
            level = self.levels[(client.number + round) % 3]
            told = {"hello": client.number, "round": round}
            yield Assignment(client, Cut(level), weight=round, told=told)


class TwiceARound(NestedStrategy):
    """Client 0 is assigned two slices in the same round."""

    Settings = settings_named("twice-a-round")

    def assign(self, round: int, clients: Sequence[Client]) -> Iterable[Assignment]:
        yield from super().assign(round, clients)
        yield Assignment(clients[0], Cut(self.levels[-1]))


# --- banks -----------------------------------------------------------------------------------


class OwnHeads(NestedStrategy):
    """Levels with heads of their own, which start at zero."""

    Settings = settings_named("own-heads")

    def bank(self, name: str, level: Level) -> str | None:
        return f"head{level.number}" if name.startswith("linear.") else super().bank(name, level)

    def first_of_banks(self, level: Level, full: State) -> Mapping[str, Tensor]:
        first = super().first_of_banks(level, full)
        return {name: torch.zeros_like(t) if "@head" in name else t for name, t in first.items()}


# --- server step, tests ------------------------------------------------------------------------


class HalfSteps(NestedStrategy):
    """The server takes half steps, and tests the smallest level only."""

    Settings = settings_named("half-steps")

    def server_step(self, state: State, previous: State) -> State:
        return {name: (state[name] + previous[name]) / 2 for name in state}

    def tested(self) -> Mapping[str, Cut]:
        return {"smallest": Cut(self.levels[0])}

    def tested_by(self, client: Client) -> Mapping[str, Cut]:
        return {"small": Cut(self.levels[0])}


# --- the client half -----------------------------------------------------------------------------


class PullingTraining(LocalTraining):
    """Pulls towards the weights at the end of the client's last training, which it remembers."""

    def begin(self, network: SlicedNetwork) -> None:
        self.anchors = {n: p.detach().clone() for n, p in network.named_parameters()}
        self.anchors |= {n: t for n, t in self.memory.items() if n in self.anchors}

    def loss(self, network: PlacedNetwork, inputs: Tensor, labels: Tensor) -> Tensor:
        pulls = [((p - self.anchors[n]) ** 2).sum() for n, p in network.module.named_parameters()]
        return super().loss(network, inputs, labels) + 0.1 * torch.stack(pulls).sum()

    def reply(self, network: SlicedNetwork) -> State:
        self.memory = {n: p.detach().clone() for n, p in network.named_parameters()}
        return network.state_dict()


@dataclass(frozen=True, kw_only=True)
class PullingSettings(PlannedSettings):
    name: str = "pulling"

    @property
    def remembers(self) -> bool:
        return True


class Pulling(NestedStrategy):
    Settings = PullingSettings
    Training = PullingTraining


class KeepsTheNewest:
    """An aggregator that keeps the newest update's values."""

    def __init__(self, unit: float = 1.0) -> None:
        self.share = unit
        self.updates: list[Update] = []

    def add(self, update: Update) -> None:
        self.updates.append(update)

    def result(self, previous: State) -> dict[str, Tensor]:
        state = {name: tensor.clone() for name, tensor in previous.items()}
        for name, region in self.updates[-1].map.regions.items():
            if not region.banked and tuple(region.shape) == tuple(region.full):
                state[region.source] = self.share * self.updates[-1].state[name]
        return state
