"""Networks whose answer to a sample does not depend on the other samples of its batch.

Batch norm without running statistics normalises by the batch, at test time too. A batch that
shrinks as samples leave, or a single sample, has no usable statistics: they must be fixed first.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from models.families import SlicedNetwork
from models.layers import StaticBatchNorm2d


def needs_statistics(net: nn.Module) -> bool:
    """Return whether some batch norm has no statistics, or has never seen data."""
    return any(_lacks_statistics(norm) for norm in _batch_norms(net))


@torch.no_grad()
def freeze(net: SlicedNetwork, batches: Iterable[Tensor]) -> SlicedNetwork:
    """Return a copy in test mode whose batch norms have their statistics from the batches.

    Statistics are the means over batches of batch means and variances, as in HeteroFL's static
    norm. All layers but the norms are in test mode, in which the statistics will be used.
    """
    frozen = keep_statistics(copy.deepcopy(net).eval())
    norms = _batch_norms(frozen)
    for norm in norms:
        norm.train()
        if isinstance(norm, StaticBatchNorm2d):
            norm.gathering = True
    for batch in batches if norms else ():
        frozen(batch)
    for norm in norms:
        norm.eval()
        if isinstance(norm, StaticBatchNorm2d):
            norm.gathering = False
    if needs_statistics(frozen):
        raise ValueError("no batch to gather the statistics of batch norm on")
    return frozen


def keep_statistics(net: SlicedNetwork) -> SlicedNetwork:
    """Let all batch norms of a network keep statistics from now on; return the network."""
    for norm in _batch_norms(net):
        _give_statistics(norm)
    return net


def only_last_exit(net: SlicedNetwork, unit: int) -> SlicedNetwork:
    """Return a copy that answers at its last exit, after unit `unit`, without any other head."""
    alone = copy.deepcopy(net)
    held = {name: head for name, head in alone.exits.items() if name == str(unit)}
    alone.exits = nn.ModuleDict(held)
    return alone


def _batch_norms(net: nn.Module) -> list[_BatchNorm]:
    return [module for module in net.modules() if isinstance(module, _BatchNorm)]


def _lacks_statistics(norm: _BatchNorm) -> bool:
    return norm.num_batches_tracked is None or int(norm.num_batches_tracked) == 0


def _give_statistics(norm: _BatchNorm) -> None:
    """Let the norm keep a cumulative mean from now on."""
    norm.track_running_stats, norm.momentum = True, None
    norm.running_mean = torch.zeros_like(norm.weight)
    norm.running_var = torch.ones_like(norm.weight)
    norm.num_batches_tracked = torch.zeros((), dtype=torch.int64, device=norm.weight.device)
