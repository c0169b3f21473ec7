"""What a device can afford, measured, for devices whose owner names no budget."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from models.slicing import Slice
from models.task import Task
from protocol.train_settings import TrainSettings
from training.devices import Placement, free_memory
from training.shared_losses import cross_entropy

REFERENCE_WIDTH = 0.25
"""The share of the channels of the task's own network that is trained to measure speed."""
BYTES_PER_PARAMETER = 64
"""What training takes for each parameter: weight, gradient, momentum, and room for activations."""
SAMPLES_PER_SECOND = 50.0
"""How fast a device should train whatever it holds."""
MEMORY_TO_USE = 0.5
"""The share of the free memory to train in: the rest is the data's and the device's owner's."""


@dataclass(frozen=True)
class Probe:
    """What was measured."""

    memory_bytes: int
    samples_per_second: float
    """Training speed of the network at REFERENCE_WIDTH."""


def probe(task: Task, settings: TrainSettings, seconds: float = 1.0) -> Probe:
    """Measure free memory, and for about `seconds` how fast a quarter of the width trains."""
    with torch.random.fork_rng(devices=[]):
        net = task.build(Slice(width=REFERENCE_WIDTH))
    place = Placement.of(settings, net)
    memory = free_memory(place.device)
    net.to(place.device).train()
    batch = max(2, settings.batch_size)
    inputs = task.input(batch, place.device)
    labels = torch.zeros(batch * task.answers, dtype=torch.int64, device=place.device)

    def seconds_of_a_step() -> float:
        started = time.perf_counter()
        loss = cross_entropy(place.logits(net, inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        loss.item()  # on a GPU: wait until it is done
        net.zero_grad()
        return time.perf_counter() - started

    began = time.perf_counter()
    seconds_of_a_step()  # not counted: the first step chooses kernels and allocates
    steps = [seconds_of_a_step()]
    while time.perf_counter() - began + steps[-1] < seconds:
        steps.append(seconds_of_a_step())
    return Probe(memory, batch / sorted(steps)[len(steps) // 2])


def budget(probe: Probe, memory_bytes: int, samples_per_second: float) -> float:
    """Return the share of the full model that a device affords, 0 to 1: the scarcer of two.

    Memory: what may be used of the free memory, by what the full model takes to train
    (`memory_bytes`). Speed: a network costs about the square of its width, so the full one runs
    at REFERENCE_WIDTH^2 of the measured speed, and a share s of it at 1/s of that; s is chosen
    so that the device trains `samples_per_second`. Both grow with what was measured.
    """
    if memory_bytes <= 0 or not samples_per_second > 0:
        raise ValueError(
            f"memory_bytes is {memory_bytes} and samples_per_second {samples_per_second}: "
            "expected what the full model needs, above 0"
        )
    by_memory = MEMORY_TO_USE * probe.memory_bytes / memory_bytes
    by_speed = probe.samples_per_second * REFERENCE_WIDTH**2 / samples_per_second
    return min(1.0, by_memory, by_speed)


def measured_budget(task: Task, settings: TrainSettings) -> float:
    """Return the share of a task's full model that this device affords, by memory and speed."""
    measured = probe(task, settings)
    parameters = sum(p.numel() for p in task.build(Slice(), device="meta").parameters())
    return budget(measured, BYTES_PER_PARAMETER * parameters, SAMPLES_PER_SECOND)
