"""Times several functions in turns: on a busy machine only their ratios are meaningful."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def medians(turns: int, **contenders: Callable[[], object]) -> dict[str, float]:
    """Return each contender's median seconds; all take a turn before any takes the next."""
    for contender in contenders.values():
        contender()
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(turns):
        for name, contender in contenders.items():
            start = time.perf_counter()
            contender()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(seconds) for name, seconds in times.items()}
