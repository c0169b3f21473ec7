"""A client's network, used again for each message, and the device and process that it runs in."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from client_app.probe import Probe, budget, measure
from models import Slice, Task
from models.loading import load_network
from tests.support.toy_networks import same, state_of
from tests.support.toy_training import CPU, EXITS, QUARTER, digits, resnet
from training import devices
from training.devices import choose_device, free_memory, resident, set_threads
from training.fitting import fit
from training.local_training import plain_loss
from training.testing import evaluate, gather_statistics

pytestmark = pytest.mark.usefixtures("one_thread")

DIGITS = Task("resnet20", 10, 1, 8)


# Networks


def test_a_network_used_again_remembers_nothing() -> None:
    state = state_of(resnet(EXITS, norm="bn-static"))
    data, task = digits(16), replace(DIGITS, options=(("norm", "bn-static"),))
    used = load_network(task, EXITS, state)
    fit(used, digits(24, seed=9), plain_loss, CPU, round=1, seed=4)
    gather_statistics(used, data, CPU)
    evaluate(used, data, CPU)
    F.cross_entropy(used(next(data.batches(8))[0])[-1], data.labels[:8]).backward()

    again = load_network(task, EXITS, state)
    assert again is used
    assert same(state_of(again), state)
    assert all(parameter.grad is None for parameter in again.parameters())
    fresh = resnet(EXITS, norm="bn-static")
    reports = [fit(net, data, plain_loss, CPU, 1, seed=5).loss for net in (again, fresh)]
    assert reports[0] == reports[1]
    assert same(state_of(again), state_of(fresh))


def test_training_changes_neither_the_state_received_nor_the_state_sent() -> None:
    state = state_of(resnet())
    received = {name: tensor.clone() for name, tensor in state.items()}
    net = load_network(DIGITS, QUARTER, state)
    fit(net, digits(16), plain_loss, CPU, round=1, seed=0)
    sent = state_of(net)
    copies = {name: tensor.clone() for name, tensor in sent.items()}
    fit(net, digits(16), plain_loss, CPU, round=1, seed=0)
    assert same(state, received)
    assert same(sent, copies)
    assert not same(sent, state)


def test_building_a_network_leaves_the_process_its_own_chance() -> None:
    chance = torch.get_rng_state()
    load_network(DIGITS, Slice(0.125), state_of(resnet(Slice(0.125))))
    assert torch.equal(torch.get_rng_state(), chance)


def test_a_state_of_another_slice_is_refused_by_name() -> None:
    state = state_of(resnet())
    missing = {name: tensor for name, tensor in state.items() if name != "conv1.weight"}
    with pytest.raises(ValueError, match=r"conv1\.weight is missing in the state received"):
        load_network(DIGITS, QUARTER, missing)
    with pytest.raises(ValueError, match="stray is missing in the slice"):
        load_network(DIGITS, QUARTER, state | {"stray": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"has shape \(4, 1, 3, 3\): expected \(8, 1, 3, 3\)"):
        load_network(DIGITS, Slice(0.5), state)


# The device


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_device_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(ValueError, match="device is 'cuda', which this machine lacks: choose auto"):
        choose_device("cuda")


def test_threads_are_those_given_and_never_more_than_the_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cores = len(os.sched_getaffinity(0))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert set_threads() == torch.get_num_threads() == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "1000")
    assert 1 <= set_threads() <= cores
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert 1 <= set_threads() == torch.get_num_threads() <= cores


def test_on_the_cpu_data_is_not_copied() -> None:
    data = digits(4)
    assert resident(data, torch.device("cpu")) is data


def test_free_memory_and_speed_are_measured() -> None:
    assert 0 < free_memory(torch.device("cpu")) < 2**50
    assert measure(Task("resnet20", 10, 1, 8), CPU, seconds=0).samples_per_second > 0


def test_files_that_a_container_only_caches_are_free_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "CGROUP", tmp_path)
    (tmp_path / "memory.max").write_text("9000\n")
    (tmp_path / "memory.current").write_text("8000\n")
    assert free_memory(torch.device("cpu")) == 1000
    (tmp_path / "memory.stat").write_text("anon 2500\nactive_file 500\ninactive_file 5000\n")
    assert free_memory(torch.device("cpu")) == 6000


def test_a_budget_is_the_scarcer_of_memory_and_speed() -> None:
    # Half of 4000 bytes is a quarter of 8000; 160/s at a quarter of the width is 10/s at full.
    assert budget(Probe(4000, 160.0), 8000, 10.0) == 0.25
    assert budget(Probe(4000, 160.0), 1000, 20.0) == 0.5
    assert budget(Probe(10**9, 1e9), 1000, 10.0) == 1.0
    shares = [budget(Probe(memory, 160.0), 8000, 10.0) for memory in range(0, 40_000, 1000)]
    assert shares == sorted(shares)
    with pytest.raises(ValueError, match="memory_bytes is 0"):
        budget(Probe(1, 1.0), 0, 1.0)


# A new process for every message


def test_training_starts_without_heavy_imports() -> None:
    script = """
import sys
import torch
import client_app.app, client_app.probe
from strategies.registry import method
method("scalefl").Training
from training.testing import evaluate
from training.fitting import fit
from protocol.train_settings import TrainSettings
from training.local_training import plain_loss
from data.catalog import IMAGES
from data.examples import ImageData
from models import SlicedNetwork
class Net(SlicedNetwork):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 10)
    def forward(self, x):
        return [self.linear(x.flatten(1))]
data = ImageData(torch.zeros(4, 1, 8, 8).byte(), torch.zeros(4).long(), IMAGES["digits"])
settings = TrainSettings(device="cpu", clip=1.0)
fit(net := Net(), data, plain_loss, settings, 1, 0)
evaluate(net, data, settings)
heavy = "torchvision transformers sklearn datasets numba hydra matplotlib torch._dynamo".split()
print([name for name in heavy if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
