"""Batch norm's statistics of narrower networks nested in a wider one (FjORD).

A slice may name narrower widths that it also contains. Its batch norms then keep statistics of
each: `bn1.width2.running_mean` belongs to the second of these widths. They share all other tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from models.slicing import Slice


class Statistics(nn.Module):
    """Batch norm's statistics of one more width; their first values are batch norm's own."""

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.register_buffer("num_batches_tracked", torch.tensor(0))


def give_statistics(net: nn.Module, slice: Slice, construct: Callable[[Slice], nn.Module]) -> None:
    """Add statistics of the nested widths to a network's batch norms that keep statistics."""
    for number, width in enumerate(slice.nested, 1):
        with torch.device("meta"):
            narrow = construct(replace(slice, width=width, nested=()))
        for name, norm in narrow.named_modules():
            if isinstance(norm, _BatchNorm) and norm.track_running_stats:
                own = Statistics(norm.num_features)
                net.get_submodule(name).add_module(f"width{number}", own)
