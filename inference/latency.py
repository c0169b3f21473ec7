"""Measures the time of an answer on this machine."""

from __future__ import annotations

import statistics
import time

import torch
from torch import Tensor

from models.families import SlicedNetwork


@torch.inference_mode()
def milliseconds(net: SlicedNetwork, x: Tensor, turns: int = 7) -> list[float]:
    """Measure the median time to each exit, from the start, for one sample of a batch like `x`.

    In a shrinking batch a sample takes longer than in a full one, on most hardware.
    """
    _times(net, x)  # the first pass also sets things up
    passes = [_times(net, x) for _ in range(turns)]
    return [1000 * statistics.median(times) / len(x) for times in zip(*passes, strict=True)]


def _times(net: SlicedNetwork, x: Tensor) -> list[float]:
    start, times = time.perf_counter(), []
    for _ in net.walk(x):
        if x.device.type != "cpu":
            torch.accelerator.synchronize(x.device)
        times.append(time.perf_counter() - start)
    return times
