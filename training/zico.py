"""ZiCo (Li et al., ICLR 2023): how well an untrained network would train, from a few gradients.

A layer's score is the logarithm of the sum, over its weights, of the gradient's mean magnitude over
its deviation from batch to batch; a network's is the sum over its layers. Large, steady gradients
promise fast training. Nothing is trained, but batches go forth and back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.families import SlicedNetwork

Batch = tuple[Tensor, Tensor]


def zico_score(net: SlicedNetwork, batches: Iterable[Batch]) -> float:
    """Return the score of a network as it is; the higher, the better. One batch scores 0."""
    weights = [
        parameter
        for module in net.modules()
        if not isinstance(module, nn.Embedding)
        for name, parameter in module.named_parameters(recurse=False)
        if name.endswith("weight") and parameter.ndim > 1  # fused q, k, v too; no norms
    ]
    net.train()
    gradients = [_gradients(net, weights, *batch) for batch in batches]
    net.zero_grad(set_to_none=True)
    return score_of(list(zip(*gradients, strict=True)))


def score_of(layers: Sequence[Sequence[Tensor]]) -> float:
    """Return the score of each layer's gradients, one for each batch.

    Weights whose gradient is the same in all batches are left out; a layer without others adds 0.
    """
    return sum(map(_layer_score, layers))


def _layer_score(gradients: Sequence[Tensor]) -> float:
    by_batch = torch.stack([gradient.flatten() for gradient in gradients]).double()
    deviation = by_batch.std(0, correction=0)
    varies = deviation > 0
    total = float((by_batch.abs().mean(0)[varies] / deviation[varies]).sum())
    return math.log(total) if total > 0 else 0.0


def _gradients(
    net: SlicedNetwork, weights: Sequence[Tensor], inputs: Tensor, labels: Tensor
) -> list[Tensor]:
    loss = F.cross_entropy(net(inputs)[-1], labels)
    found = torch.autograd.grad(loss, weights, allow_unused=True)
    return [
        torch.zeros_like(weight) if gradient is None else gradient
        for weight, gradient in zip(weights, found, strict=True)
    ]
