"""Measures differences between methods, paired over seeds, and gives a verdict if it is safe.

A pair is two runs of the same seed, so of the same partition, the same first weights and the same
sampled clients. The interval is the percentile bootstrap of the mean difference. It is too narrow
for few seeds: for three it reaches at most from the smallest to the largest difference, and all
three have the same sign by chance in one of four cases. So Student's paired t must agree.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from nestfl.comparing.results import Group
from server_app.report.grouping import own_option

CONFIDENCE = 0.95
RESAMPLES = 9999
FEWEST_SEEDS = 3
"""Least pairs for a verdict."""

Verdict = Literal["better", "worse", "no difference shown", "too few seeds"]

TURNED: dict[Verdict, Verdict] = {"better": "worse", "worse": "better"}
"""Verdicts of a score that should be low."""


@dataclass(frozen=True)
class Difference:
    """The mean of a score's paired differences, with its interval."""

    mean: float
    low: float
    high: float
    pairs: int
    verdict: Verdict


def difference(
    ours: Mapping[str | None, float],
    theirs: Mapping[str | None, float],
    lower_is_better: bool = False,
) -> Difference:
    """Return the mean of `ours` minus `theirs`, over the seeds that both have."""
    seeds = [seed for seed in ours if seed in theirs]
    if not seeds:
        raise ValueError("expected at least one seed that both have")
    deltas = np.array([ours[seed] - theirs[seed] for seed in seeds])
    mean = float(deltas.mean())
    if len(deltas) < 2:
        return Difference(mean, mean, mean, len(deltas), "too few seeds")
    low, high = _interval(deltas)
    verdict = _verdict(deltas, low, high)
    if lower_is_better:
        verdict = TURNED.get(verdict, verdict)
    return Difference(mean, low, high, len(deltas), verdict)


def _interval(deltas: np.ndarray) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the mean; it is deterministic."""
    from scipy.stats import bootstrap

    found = bootstrap(
        (deltas,),
        np.mean,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    return float(found.low), float(found.high)


def _verdict(deltas: np.ndarray, low: float, high: float) -> Verdict:
    if len(deltas) < FEWEST_SEEDS:
        return "too few seeds"
    if low <= 0 <= high or not _t_test_agrees(deltas):
        return "no difference shown"
    return "better" if low > 0 else "worse"


def _t_test_agrees(deltas: np.ndarray) -> bool:
    """Return whether Student's t separates the mean from 0 at the same confidence."""
    from scipy.stats import ttest_1samp

    if np.ptp(deltas) == 0:
        return bool(deltas[0] != 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of differences that are almost equal
        return bool(ttest_1samp(deltas, 0.0).pvalue < 1 - CONFIDENCE)


def baseline_of(group: Group, groups: Sequence[Group], baseline: Mapping[str, str]) -> Group | None:
    """Return the group with the baseline's choices and this group's others; None for itself.

    Options of one strategy need not be equal: among several groups the first counts.
    """
    wanted = {**_shared(group.choices), **_shared(baseline)}
    found = (
        other
        for other in groups
        if _shared(other.choices) == wanted and baseline.items() <= other.choices.items()
    )
    base = next(found, None)
    return None if base is None or base.choices == group.choices else base


def _shared(choices: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in choices.items() if not own_option(key, choices)}
