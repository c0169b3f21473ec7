"""Which clients train in a round, and what, where that is drawn."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

LEVELS = 2**31
"""Tells the draws of levels from those of seeds, which go by (seed, round, client), too."""


def sampled(available: Collection[int], count: int, seed: int, round: int) -> list[int]:
    """Return so many of the clients, or all, drawn from (seed, round) over the sorted numbers."""
    generator = np.random.default_rng((seed, round))
    drawn = generator.choice(sorted(available), min(count, len(available)), replace=False)
    return sorted(drawn.tolist())


def drawn(weights: Sequence[float], seed: int, round: int, client: int) -> int:
    """Return one of the positions, as often as its weight says, from (seed, round, client)."""
    generator = np.random.default_rng((seed, round, client, LEVELS))
    return int(generator.choice(len(weights), p=np.asarray(weights) / sum(weights)))
