"""Perplexity: among how many words, equally likely, a language model has left the next one open.

The lower, the better. It stands in a round's metrics under names of its own, beside accuracies.
"""

from __future__ import annotations

import math

LARGEST_LOSS = 700.0
"""Beyond, there is no number for the perplexity."""
PERPLEXITY = "perplexity"


def perplexity(loss: float) -> float:
    """Return the perplexity of a mean cross-entropy per word."""
    return math.exp(loss) if loss < LARGEST_LOSS else math.inf


def perplexity_of(score: str) -> str:
    """Return the name of the perplexity that belongs to an accuracy: of `local`, its own."""
    return PERPLEXITY if score == "accuracy" else f"{score}_{PERPLEXITY}"


def is_perplexity(score: str) -> bool:
    """Return whether a score is a perplexity: the lower, the better."""
    return score.endswith(PERPLEXITY)


def shown(value: float | None) -> str:
    """Return a perplexity as people read it, or a dash where there is none."""
    return "-" if value is None else f"{value:.1f}"
