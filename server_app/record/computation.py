"""What local training computes, as FedFA counts it (section 5.2): MACs of forward passes.

A round's line counts steps of three forward passes, of all its local epochs; MACE is one forward
pass of all examples of a round's clients: one local epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

from server_app.record.metrics import RoundMetrics
from strategies.levels.cost import TRAINING_PASSES


def epoch_macs(line: RoundMetrics, epochs: int) -> dict[str, float]:
    """Return the forward MACs of one of a round's local epochs: those of each level's clients."""
    slices: Mapping[str, Mapping[str, Any]] = line.get("slices", {})
    passes = TRAINING_PASSES * epochs
    return {level: each["macs"] / passes for level, each in slices.items() if "macs" in each}


def mace(lines: Iterable[RoundMetrics], epochs: int) -> float | None:
    """Return the MACs of one local epoch of all clients of a round, the mean over the rounds.

    None where no MACs are recorded.
    """
    found = [sum(each.values()) for line in lines if (each := epoch_macs(line, epochs))]
    return fmean(found) if found else None
