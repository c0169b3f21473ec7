"""Measures a device's budget, for devices whose owner names none.

Other load on the device must hardly change the result: beside busy processes, training in several
threads may take a hundred times as long from one second to the next. So a training step is timed in
one thread, in processor time. The gain of several threads is measured with short matrix products
that fit between two turns of the scheduler. The fastest of many measurements counts.

The speed is kept in a file of the cache (data/cache.py), so that a device reports the same budget
in the next run. The free memory is read anew each time.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch
from filelock import FileLock

from data.cache import cache_dir
from models.slicing import Slice
from models.task import Task
from protocol.reading import MOST, ProtocolError, reading, within
from protocol.train_settings import TrainSettings
from training.devices import Placement, choose_device, free_memory, threads
from training.shared_losses import cross_entropy

REFERENCE_WIDTH = 0.25
"""Share of the network's channels that is trained to measure the speed."""
BYTES_PER_PARAMETER = 64
"""Bytes of training per parameter: weight, gradient, momentum, and room for activations."""
SAMPLES_PER_SECOND = 50.0
"""Target speed, in examples per second: a device affords the share that it trains so fast."""
MEMORY_TO_USE = 0.5
"""Share of the free memory to train in; the rest is for the data and the device's owner."""

SHORTEST, LONGEST = 1.0, 10.0
"""Seconds that a measurement takes at least, and seconds after which few rounds are enough."""
ROUNDS, FEW_ROUNDS = 12, 3
"""Rounds of a measurement, normally and after LONGEST seconds. A round is a training step, and a
burst of products in one thread and in all threads."""
BURST, PAUSE = 5, 0.02
"""Products of a burst, and seconds of sleep before it. The scheduler favours a process that has
slept, and OpenMP's threads, which wait busily for each other for some 10 ms, have stopped by
then."""
PRODUCT = 256
"""Rows and columns of the products' matrices; one product takes less than a scheduler's turn."""

METHOD = 1
"""Version of the measurement, part of the cache key: raise it when the measurement changes."""
LONGEST_FILE = 10_000
"""Most bytes of a file that keeps a speed."""

log = logging.getLogger("flwr")  # the logger that a SuperNode shows


@dataclass(frozen=True)
class Probe:
    """The measured free memory and speed of a device."""

    memory_bytes: int
    samples_per_second: float
    """Training speed of the network at REFERENCE_WIDTH, in all threads of training."""
    when: str = "measured now"
    """Age of the measurement and the file that keeps it."""


@dataclass
class Times:
    """Seconds of a measurement's parts, in the order of measurement."""

    batch: int
    threads: int
    steps: list[float] = field(default_factory=list)
    """Training steps of a batch: in one thread on a CPU, on the whole device otherwise."""
    alone: list[float] = field(default_factory=list)
    """Products in one thread."""
    together: list[float] = field(default_factory=list)
    """The same products in all threads."""

    @property
    def samples_per_second(self) -> float:
        """Training speed in all threads, from the fastest time of each part."""
        return self.batch / min(self.steps) * self.gain

    @property
    def gain(self) -> float:
        """Speed of all threads relative to one, between 1 and the number of threads."""
        if not self.together:
            return 1.0
        return min(max(1.0, min(self.alone) / min(self.together)), float(self.threads))


def measure(task: Task, settings: TrainSettings, seconds: float = SHORTEST) -> Times:
    """Measure the training speed at a quarter of the width, in the threads that torch has now."""
    with torch.random.fork_rng(devices=[]):
        net = task.build(Slice(width=REFERENCE_WIDTH))
    place = Placement.of(settings, net)
    net.to(place.device).train()
    batch, on_cpu = max(2, settings.batch_size), place.device.type == "cpu"
    inputs = task.input(batch, place.device)
    labels = torch.zeros(batch * task.answers, dtype=torch.int64, device=place.device)
    times = Times(batch, torch.get_num_threads())
    matrix = torch.ones(PRODUCT, PRODUCT)
    product = torch.empty_like(matrix)

    def step() -> None:
        loss = cross_entropy(place.logits(net, inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        loss.item()  # on a GPU: wait until it is done
        net.zero_grad()

    def burst(found: list[float]) -> None:
        time.sleep(PAUSE)
        found += [_seconds(lambda: torch.mm(matrix, matrix, out=product)) for _ in range(BURST)]

    def measure_once() -> None:
        # In one thread nothing waits for another, and processor time excludes other processes.
        with threads(1 if on_cpu else times.threads):
            times.steps.append(_seconds(step, time.thread_time if on_cpu else time.perf_counter))
        if on_cpu and times.threads > 1:
            with threads(1):
                burst(times.alone)
            burst(times.together)

    began = time.monotonic()
    with threads(1 if on_cpu else times.threads):
        step()  # not counted: the first step chooses kernels and allocates memory
    while not _enough(len(times.steps), time.monotonic() - began, seconds):
        measure_once()
    return times


def _enough(rounds: int, passed: float, seconds: float) -> bool:
    return passed >= seconds and rounds >= (FEW_ROUNDS if passed >= LONGEST else ROUNDS)


def _seconds(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    started = clock()
    work()
    return clock() - started


def probe(task: Task, settings: TrainSettings) -> Probe:
    """Return the free memory and the speed of this device, measured now or earlier."""
    device = choose_device(settings.device)
    memory = free_memory(device)
    key = _key(task, settings, device)
    file = cache_dir() / f"speed-{hashlib.sha256(key.encode()).hexdigest()[:20]}.json"
    with ExitStack() as stack:
        with suppress(OSError):  # a speed that cannot be written is not kept
            file.parent.mkdir(parents=True, exist_ok=True)
            # Other nodes of this machine wait, so that two measurements do not slow each other.
            stack.enter_context(FileLock(f"{file}.lock"))
        speed, when = kept_speed(file, key), f"measured earlier, kept in {file}"
        if speed is None:
            speed = measure(task, settings).samples_per_second
            kept = keep_speed(file, key, speed)
            when = f"measured now, kept in {file}" if kept else "measured now"
    return Probe(memory, speed, when)


def _key(task: Task, settings: TrainSettings, device: torch.device) -> str:
    """Return all that a measured speed depends on."""
    train = (settings.batch_size, settings.precision, settings.channels_last)
    where = (device.type, _chip(device), torch.get_num_threads(), torch.__version__)
    return repr((METHOD, task, train, where))


def _chip(device: torch.device) -> str:
    """Return the processor's name for a device."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.lower().startswith(("model name", "model\t", "hardware")):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def kept_speed(file: Path, key: str) -> float | None:
    """Return the speed in a file; None if the file is missing or damaged."""
    try:
        with reading("a kept speed"):
            if not file.is_file() or file.stat().st_size > LONGEST_FILE:
                return None
            kept = json.loads(file.read_text(encoding="utf-8"))
            if kept["of"] != key:
                return None
            return within(kept["samples_per_second"], "samples_per_second", 1e-6, MOST)
    except ProtocolError as error:
        log.warning("%s is not used: %s", file, error)
        return None


def keep_speed(file: Path, key: str, speed: float) -> bool:
    """Keep a speed in a file, whole or not at all; return whether it is kept."""
    unfinished = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        unfinished.write_text(json.dumps({"of": key, "samples_per_second": speed}))
        os.replace(unfinished, file)
    except OSError as error:
        log.warning("the measured speed is not kept: %s", error)
        with suppress(OSError):
            unfinished.unlink(missing_ok=True)
        return False
    return True


def budget(probe: Probe, memory_bytes: int, samples_per_second: float) -> float:
    """Return the share of the full model that a device affords, 0 to 1, by memory and by speed.

    The smaller share counts. Memory: the usable part of the free memory, divided by the bytes that
    the full model takes to train (`memory_bytes`). Speed: a network costs about the square of its
    width, so the full one runs at REFERENCE_WIDTH^2 of the measured speed, and a share s of it at
    1/s of that; s is chosen so that the device trains `samples_per_second`. Both grow with the
    measured values.
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
    found = budget(measured, BYTES_PER_PARAMETER * parameters, SAMPLES_PER_SECOND)
    log.info(
        "budget %.3g: %.4g examples/s at width %g of %s on %s, threads: %d (%s), %s memory free",
        *(found, measured.samples_per_second, REFERENCE_WIDTH, task.model),
        *(choose_device(settings.device), torch.get_num_threads(), measured.when),
        f"{measured.memory_bytes / 1e9:.1f} GB",
    )
    return found
