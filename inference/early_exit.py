"""Budgeted batch classification (ScaleFL, Appendix 6.3): certain samples leave the batch early."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from inference.anytime import Answers
from models.families import SlicedNetwork


@torch.inference_mode()
def classify(net: SlicedNetwork, x: Tensor, thresholds: Sequence[float]) -> Answers:
    """Answer each sample at the first exit that is confident enough, in the batch's order.

    A sample leaves where its confidence reaches the exit's threshold; the exit behind the last
    threshold answers all others. Samples that have left are not computed any further.
    """
    answers = Answers(
        torch.empty(len(x), dtype=torch.int64, device=x.device),
        torch.empty(len(x), dtype=torch.int64, device=x.device),
        torch.empty(len(x), device=x.device),
    )
    staying = torch.arange(len(x), device=x.device)
    if not len(x):
        return answers
    walk = net.walk(x)
    logits = next(walk)
    for number, threshold in enumerate((*thresholds, 0.0)):  # no confidence is below 0
        confidence, classes = logits.float().softmax(-1).max(-1)
        stays = confidence < threshold
        leaves = ~stays
        leaving = int(leaves.sum())
        if leaving:  # skipped if no sample leaves, the usual case for a batch of one
            left, staying = staying[leaves], staying[stays]
            answers.classes[left] = classes[leaves]
            answers.confidence[left] = confidence[leaves]
            answers.exits[left] = number
        if not len(staying):
            break
        try:
            # Without a mask the batch is not copied.
            logits = walk.send(stays if leaving else None)
        except StopIteration:
            raise ValueError(
                f"{len(thresholds)} thresholds, but the network has {number + 1} exits: "
                "expected one for each exit but the last"
            ) from None
    walk.close()
    return answers
