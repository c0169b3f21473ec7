"""Buffers that are in no state dict have their values wherever a network is used."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from client_app.app import received
from data.clients import global_test
from models import (
    Slice,
    SlicedNetwork,
    Task,
    Walk,
    declare_parts,
    families,
    register,
)
from models.frozen import freeze, only_last_exit
from models.loading import load_network, network_of, network_to_load, unsaved_buffers
from protocol.reports import Evaluation
from server_app import app as server
from server_app.config import choices
from server_app.config.composing import compose
from server_app.trained_level import load_level
from strategies.evaluation import evaluate_submodels
from strategies.round import NestedStrategy
from tests.support.grids import InProcessGrid
from tests.support.toy_networks import same, state_of
from tests.support.toy_training import CPU, digits
from training.fitting import fit
from training.local_training import plain_loss

pytestmark = pytest.mark.usefixtures("one_thread", "networks")

HALF = Slice(width=0.5)
HEADS = 2


class Gained(SlicedNetwork):
    """Buffers that are constant, drawn, and moved by training; and a tensor that is no buffer."""

    gain: Tensor
    moving: Tensor

    def __init__(self, num_classes: int, in_channels: int, slice: Slice) -> None:
        super().__init__()
        channels = slice.channels(8)
        self.conv = nn.Conv2d(in_channels, channels, 3)
        self.fc = nn.Linear(channels, num_classes)
        self.exits = nn.ModuleDict()
        self.register_buffer("gain", torch.tensor(3.0), persistent=False)
        self.register_buffer("drawn", torch.randn(channels), persistent=False)
        self.register_buffer("moving", torch.ones(channels).expand(2, -1), persistent=False)
        self.plain = torch.arange(channels) / channels

    def walk(self, x: Tensor) -> Walk:
        features = self.conv(x).relu().mean((2, 3)) * self.gain + self.drawn
        if self.training:
            self.moving = 0.5 * self.moving + features.detach().mean(0)
        yield self.fc(features * self.moving[0] + self.plain.to(x.device))


class Distil(SlicedNetwork):
    """DistilBERT of Hugging Face's modules, whose positions are a buffer."""

    def __init__(self, num_classes: int, slice: Slice) -> None:
        from transformers import DistilBertConfig
        from transformers.models.distilbert.modeling_distilbert import Embeddings, TransformerBlock

        super().__init__()
        size = HEADS * slice.channels(8)
        config = DistilBertConfig(
            dim=size, hidden_dim=size, n_heads=HEADS, n_layers=1, max_position_embeddings=128
        )
        self.embeddings = Embeddings(config)
        self.layer = TransformerBlock(config)
        self.fc = nn.Linear(size, num_classes)
        self.exits = nn.ModuleDict()
        for name, module in self.named_modules():
            for tensor, values in module.named_parameters(recurse=False):
                for axis, length in enumerate(values.shape):
                    if axis > 0 or not (name == "fc" or "embeddings" in name.split(".")[-1]):
                        declare_parts(module, tensor, axis, (length // HEADS,) * HEADS)

    def walk(self, x: Tensor) -> Walk:
        yield self.fc(self.layer(self.embeddings(x))[:, 0])


@pytest.fixture
def networks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(families, "_FAMILIES", dict(families._FAMILIES))
    register("gained", units=1)(Gained)
    register("distil", units=1, reads="tokens")(Distil)


TASKS = [Task("gained", in_channels=1, image_size=8), Task("distil", num_classes=4)]


def as_constructed(task: Task, slice: Slice, net: nn.Module) -> SlicedNetwork:
    """The network built as anybody would, with the other's weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        built = task.build(slice)
    built.load_state_dict(net.state_dict())
    return built.eval()


def answers_alike(task: Task, slice: Slice, net: nn.Module) -> bool:
    inputs = task.input(2)
    with torch.inference_mode():
        expected = as_constructed(task, slice, net)(inputs)
        return all(map(torch.equal, net.eval()(inputs), expected))


def federate(
    task: Task, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[NestedStrategy, InProcessGrid]:
    conf = shutil.copytree(choices.CONF, folder / "conf")
    (conf / "model" / f"{task.model}.yaml").write_text(f"name: {task.model}\n")
    monkeypatch.setattr(choices, "CONF", conf)
    data = "digits" if task.model == "gained" else "docstrings"
    config = compose(
        f"model={task.model} dataset={data} strategy=heterofl fleet=small rounds=1 "
        f"train.epochs=1 dataset.max_train=80 dataset.max_test=40 output={folder} name=run"
    )
    grid = InProcessGrid(4)
    return server.run(grid, config), grid


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.model)
def test_every_network_of_a_run_has_its_buffers(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's, which are evaluated; a client's; and a level of the run's checkpoint."""
    strategy, grid = federate(task, tmp_path, monkeypatch)
    task = strategy.federation.task
    evaluated: list[nn.Module] = []

    def evaluate(net: nn.Module) -> Evaluation:
        evaluated.append(net)
        return Evaluation(1, (0.0,), (0.0,))

    server_metrics = evaluate_submodels(strategy, evaluate)
    assert len(evaluated) == len(strategy.levels) == len(server_metrics["levels"])
    for level, net in zip(strategy.levels, evaluated, strict=True):
        assert answers_alike(task, level.slice, net)
        restored = load_level(tmp_path / "run", level.number)
        assert answers_alike(task, level.slice, restored.net)
    for message in [m for m in grid.sent if m.metadata.message_type == "train"]:
        work, net = received(message, grid.contexts[message.metadata.dst_node_id])
        assert answers_alike(task, work.slice, net)
    inputs, _ = next(iter(global_test(strategy.federation.dataset).batches(4)))
    for derived in (only_last_exit(restored.net, 1), freeze(restored.net, [inputs])):
        assert answers_alike(task, restored.slice, derived)


def test_training_starts_from_the_buffers_as_they_were_built() -> None:
    """A client's network is used again for each message."""
    task, data = TASKS[0], digits(16)
    state = state_of(network_to_load(task, HALF))
    trained: list[dict[str, Any]] = []
    for _ in range(2):
        net = load_network(task, HALF, state)
        assert answers_alike(task, HALF, net)
        fit(net, data, plain_loss, CPU, round=1, seed=3)
        trained.append(state_of(net))
        assert not torch.equal(net.get_buffer("moving"), torch.ones(2, 4))
    assert same(*trained)
    assert not same(trained[0], state)


def test_what_a_constructor_draws_is_the_same_everywhere_and_takes_nobodys_chance() -> None:
    task = TASKS[0]
    chance = torch.get_rng_state()
    first = network_to_load(task, HALF)
    assert torch.equal(torch.get_rng_state(), chance)
    torch.manual_seed(5)
    state = state_of(first)
    for other in (network_to_load(task, HALF), network_of(task, HALF, state)):
        assert same(unsaved_buffers(other), unsaved_buffers(first))
        assert list(unsaved_buffers(other)) == ["gain", "drawn", "moving"]


def test_networks_of_one_slice_share_nothing() -> None:
    task = TASKS[0]
    state = state_of(network_to_load(task, HALF))
    first, second = (
        network_of(task, HALF, {name: tensor.clone() for name, tensor in state.items()})
        for _ in range(2)
    )
    fit(first, digits(16), plain_loss, CPU, round=1, seed=3)
    with torch.no_grad():
        first.get_buffer("gain").zero_()
    assert same(state_of(second), state)
    assert answers_alike(task, HALF, second)
    assert all(parameter.requires_grad for parameter in second.parameters())
