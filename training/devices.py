"""Chooses the device, number format and memory layout in which a network computes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from data.examples import Examples
from models.families import SlicedNetwork
from protocol.train_settings import DeviceKind, PrecisionKind, TrainSettings

ONEDNN_BLOCK = 16
"""Channels that oneDNN computes at once with AVX-512 (8 with AVX2)."""


@dataclass(frozen=True)
class Placement:
    """The device, the number format and the layout of a network on this machine."""

    device: torch.device
    precision: torch.dtype
    layout: torch.memory_format

    @classmethod
    def of(cls, settings: TrainSettings, net: nn.Module) -> Placement:
        device = choose_device(settings.device)
        layout = torch.channels_last if _channels_last(settings, device, net) else None
        precision = choose_precision(settings.precision, device)
        return cls(device, precision, layout or torch.contiguous_format)

    def logits(self, net: Callable[[Tensor], list[Tensor]], inputs: Tensor) -> list[Tensor]:
        """Return the network's logits at each exit, in float32.

        Only the images change their layout: convolutions follow their input (measured: as fast as
        with converted weights), and weights in their own layout can be sent directly.
        """
        if inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=self.layout)
        mixed = self.precision != torch.float32
        with torch.autocast(self.device.type, self.precision, enabled=mixed):
            answers = net(inputs)
        return [answer.float() for answer in answers]


@dataclass(frozen=True)
class PlacedNetwork:
    """A network with its placement: called with inputs, it returns the logits of each exit."""

    module: SlicedNetwork
    place: Placement
    run: Callable[[Tensor], list[Tensor]]
    """Computes the logits: the module, or its compiled form."""

    def __call__(self, inputs: Tensor) -> list[Tensor]:
        return self.place.logits(self.run, inputs)


def _channels_last(settings: TrainSettings, device: torch.device, net: nn.Module) -> bool:
    """Return whether it helps: on CUDA, and on CPU (1.1 to 1.25 times as fast) where it is safe."""
    unsafe = device.type == "cpu" and _is_unsafe(net)
    if settings.channels_last == "on" and unsafe:
        raise ValueError(
            "channels_last is 'on': expected 'auto' or 'off', because oneDNN corrupts memory with "
            "this slice's strided 1x1 convolution of few channels (oneDNN issue 6035)"
        )
    if settings.channels_last == "auto":
        return device.type == "cuda" or (device.type == "cpu" and not unsafe)
    return settings.channels_last == "on"


_UNSAFE: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
"""Whether each network has a module that `_overruns_channels_last`; networks are used again."""


def _is_unsafe(net: nn.Module) -> bool:
    """Return whether channels last would corrupt memory; a network is searched once."""
    if net not in _UNSAFE:
        _UNSAFE[net] = any(map(_overruns_channels_last, net.modules()))
    return _UNSAFE[net]


def _overruns_channels_last(module: nn.Module) -> bool:
    """Return whether its backward pass on CPU writes past a buffer (3 to 7 channels crashed).

    github.com/uxlfoundation/oneDNN/issues/6035: fewer input channels than oneDNN's block.
    """
    return (
        isinstance(module, nn.Conv2d)
        and max(module.kernel_size) == 1
        and max(module.stride) > 1
        and module.in_channels // module.groups < ONEDNN_BLOCK
    )


CGROUP = Path("/sys/fs/cgroup")
"""Where a container's limits are (cgroup v2)."""


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
    """Return autocast's number format; `auto` is bf16 on CUDA devices that have it, else fp32."""
    if kind == "auto":
        has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if has_bf16 else torch.float32
    if kind == "fp16" and device.type != "cuda":
        raise DeviceError(f"precision fp16 needs CUDA, not {device.type}: choose auto, fp32, bf16")
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[kind]


def set_threads() -> int:
    """Let torch use the cores of this process only, and return their number.

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
    """Let torch compute in `count` threads within the block."""
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
    # cgroup v2: "QUOTA PERIOD" in microseconds, or "max PERIOD" without a limit.
    quota, period = (*_cgroup("cpu.max").split(), "max", "max")[:2]
    if quota.isdecimal() and period.isdecimal():
        return max(1, min(cores, int(quota) // int(period)))
    return cores


def _cgroup(file: str) -> str:
    """Return the container's limit (cgroup v2), or an empty text outside of a container."""
    try:
        return (CGROUP / file).read_text().strip()
    except OSError:
        return ""


def free_memory(device: torch.device) -> int:
    """Return the bytes of memory that a training process may still allocate."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
    free = _free_system_memory()
    limit, used = _cgroup("memory.max"), _cgroup("memory.current")
    if limit.isdecimal() and used.isdecimal():
        free = min(free, int(limit) - int(used) + _cached_files())
    return max(0, free)


def _cached_files() -> int:
    """Return the bytes of files that a container's memory holds only until they are needed."""
    for line in _cgroup("memory.stat").splitlines():
        if line.startswith("inactive_file "):
            return int(line.split()[1])
    return 0


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
