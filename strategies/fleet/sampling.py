"""Which clients train in a round."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np


def sampled(available: Collection[int], count: int, seed: int, round: int) -> list[int]:
    """Return so many of the clients, or all, drawn from (seed, round) over the sorted numbers."""
    generator = np.random.default_rng((seed, round))
    drawn = generator.choice(sorted(available), min(count, len(available)), replace=False)
    return sorted(drawn.tolist())
