"""Fits thresholds on validation data by which a system's nodes answer at their rates.

A node passes on the share of its samples that its rates give: those that its exit is least
confident of (CIS, Section 4.2). Its threshold is the lowest confidence among those that stay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from inference.topology import Node, Topology

NEVER = 2.0
"""A threshold that no confidence reaches: all samples go on."""


def check_threshold(threshold: float) -> None:
    """Raise unless a given threshold is a confidence."""
    if not 0 <= threshold <= 1:
        raise ValueError(f"--threshold {threshold}: expected 0 to 1")


def fit_node_thresholds(topology: Topology, scores: Tensor) -> dict[str, float]:
    """Return each node's threshold, from the exits' confidence on validation samples, [exits, n].

    A node without parents answers all: its threshold is 0. Each sample may arrive at any node, so a
    node sees all samples, with weights.
    """
    if not scores.shape[1]:
        raise ValueError("no samples to fit thresholds on: expected at least one")

    def fitted(node: Node, confidence: Tensor, weight: Tensor) -> float:
        return _threshold(confidence, weight, topology.rates[node.name].forwarded)

    return _pass_up(topology, scores, fitted)


def forwarded_shares(
    topology: Topology, thresholds: Mapping[str, float], scores: Tensor
) -> dict[str, float]:
    """Return the share of its samples that each node with parents passes on."""
    shares = {}

    def noted(node: Node, confidence: Tensor, weight: Tensor) -> float:
        threshold, total = thresholds[node.name], weight.sum()
        shares[node.name] = float(weight[confidence < threshold].sum() / total) if total else 0.0
        return threshold

    _pass_up(topology, scores, noted)
    return shares


def _pass_up(
    topology: Topology, scores: Tensor, choose: Callable[[Node, Tensor, Tensor], float]
) -> dict[str, float]:
    """Return each node's threshold, chosen from the samples that the nodes below pass on to it."""
    samples = scores.shape[1]
    weights = {
        node.name: torch.full((samples,), node.arrival, dtype=torch.float64)
        for node in topology.nodes
    }
    thresholds = {}
    for node in topology.upwards:
        if not node.parents:
            thresholds[node.name] = 0.0
            continue
        confidence, weight = scores[node.exit - 1], weights[node.name]
        threshold = choose(node, confidence, weight)
        thresholds[node.name] = threshold
        leaving = torch.where(confidence < threshold, weight, 0.0)
        for parent, share in node.divided.items():
            weights[parent] = weights[parent] + share * leaving
    return {node.name: thresholds[node.name] for node in topology.nodes}


def _threshold(confidence: Tensor, weight: Tensor, forwarded: float) -> float:
    """Return the confidence below which the share of the weight is nearest to `forwarded`.

    Samples of equal confidence all leave or all stay.
    """
    total = weight.sum()
    if not total or forwarded <= 0:
        return 0.0
    if forwarded >= 1:
        return NEVER
    values, place = torch.unique(confidence, return_inverse=True)  # in ascending order
    weighs = torch.zeros(len(values), dtype=weight.dtype).index_add_(0, place, weight)
    below = weighs.cumsum(0) / total  # share that has left after the first k values
    # No value leaves if a share of 0 is nearer than that of the first value.
    gone = int((below - forwarded).abs().argmin()) + 1 if forwarded > below[0] / 2 else 0
    return float(values[gone]) if gone < len(values) else NEVER
