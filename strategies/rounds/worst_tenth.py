"""The tenth of the clients that a model serves worst: a mean over all may hide them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import fmean
from typing import Any

from training.perplexity import is_perplexity

SHARE = 0.1
"""Of the clients, rounded up: of fewer than eleven it is one."""


def worst_tenth(scores: Iterable[float], lower_is_better: bool = False) -> float | None:
    """Return the mean score of the tenth of the clients whose scores are worst; None of none."""
    ordered = sorted(scores, reverse=lower_is_better)
    return fmean(ordered[: math.ceil(SHARE * len(ordered))]) if ordered else None


def worst_tenths(line: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
    """Return them for each kind of test in a round's line that tells single clients apart."""
    by_kind = {**line.get("scores", {}), "personal": line.get("personal", {}).get("scores")}
    found = {
        kind: worst_tenth(scores.values(), is_perplexity(kind))
        for kind, scores in by_kind.items()
        if scores
    }
    return {"worst_tenth": found} if found else {}
