"""The device that a client trains on: which one, its threads, its number format, its copies."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from data.examples import Examples
from protocol.train_settings import DeviceKind, PrecisionKind


class DeviceError(ValueError):
    """A kind of device, or of precision, that this machine lacks."""


def choose_device(kind: DeviceKind) -> torch.device:
    """Return the device asked for; `auto` takes CUDA, then MPS, then the CPU."""
    offered = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    if kind == "auto":
        return torch.device(next(name for name, there in offered.items() if there))
    if not offered[kind]:
        there = ", ".join(name for name, there in offered.items() if there)
        raise DeviceError(f"device is {kind!r}, which this machine lacks: choose auto, {there}")
    return torch.device(kind)


def choose_precision(kind: PrecisionKind, device: torch.device) -> torch.dtype:
    """Return what autocast computes in; `auto` is bf16 on CUDA devices that have it, else fp32."""
    if kind == "auto":
        has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if has_bf16 else torch.float32
    if kind == "fp16" and device.type != "cuda":
        raise DeviceError(f"precision fp16 needs CUDA, not {device.type}: choose auto, fp32, bf16")
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[kind]


def set_threads() -> int:
    """Let torch use the cores that this process was given, no more.

    Ray gives a simulated client its share in OMP_NUM_THREADS; a deployed client has no such
    variable and takes all cores that its affinity and its container's quota allow.
    """
    given = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    threads = min(int(given), _cores()) if given.isdecimal() and int(given) > 0 else _cores()
    if threads != torch.get_num_threads():
        torch.set_num_threads(threads)
    return threads


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch compute in so many threads within the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _cores() -> int:
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    cores = len(os.sched_getaffinity(0))
    quota, period = (*_cgroup("cpu.max").split(), "max", "max")[:2]
    if quota.isdecimal() and period.isdecimal():
        return max(1, min(cores, int(quota) // int(period)))
    return cores


def _cgroup(file: str) -> str:
    """Return the container's limit (cgroup v2), or nothing outside of one."""
    try:
        return Path("/sys/fs/cgroup", file).read_text().strip()
    except OSError:
        return ""


def free_memory(device: torch.device) -> int:
    """Return the bytes that a training process may still take."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    free = _free_system_memory()
    limit, used = _cgroup("memory.max"), _cgroup("memory.current")
    if limit.isdecimal() and used.isdecimal():
        free = min(free, int(limit) - int(used))
    return max(0, free)


def _free_system_memory() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("MemAvail")) * 1024
    except (OSError, StopIteration):
        raise OSError(
            "the free memory of this system cannot be measured: name the device's budget instead"
        ) from None


def resident(data: Examples, device: torch.device) -> Examples:
    """Return the client's examples on the device, copied once; batches are then cut there."""
    return data if device.type == "cpu" else data.to(device)
