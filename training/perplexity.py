"""Perplexity: the number of equally likely next words that a language model leaves open.

Lower is better. A round's metrics have it beside accuracies, under names of its own.
"""

from __future__ import annotations

import math

LARGEST_LOSS = 700.0
"""Mean loss above which the perplexity is infinite."""
PERPLEXITY = "perplexity"


def perplexity(loss: float) -> float:
    """Return the perplexity of a mean cross-entropy per word."""
    return math.exp(loss) if loss < LARGEST_LOSS else math.inf


def perplexity_of(score: str) -> str:
    """Return the perplexity's name for an accuracy's name, such as that of `local`."""
    return PERPLEXITY if score == "accuracy" else f"{score}_{PERPLEXITY}"


def is_perplexity(score: str) -> bool:
    """Return whether a score is a perplexity, for which lower is better."""
    return score.endswith(PERPLEXITY)


def shown(value: float | None) -> str:
    """Format a perplexity, or a dash where there is none."""
    return "-" if value is None else f"{value:.1f}"
