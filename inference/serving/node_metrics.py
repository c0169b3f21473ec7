"""Counts a node's requests and answers, with the latencies of its last requests."""

from __future__ import annotations

import resource
import sys
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

QUANTILES = (0.5, 0.9, 0.99)
LAST_REQUESTS = 4096
MOST_ANSWERERS, OTHERS = 256, ("others", 0)
"""Most pairs of node and exit counted separately, since names come from parents."""


class Metrics:
    """The counts of a node since it started; `text` returns them for Prometheus."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        """Requests by kind: predict, continue."""
        self.answers: Counter[tuple[str, int]] = Counter()
        """Samples, by the node and the number of the exit that answered."""
        self.samples = 0
        self.forwarded = 0
        """Samples that were passed on and came back answered."""
        self.degraded = 0
        """Samples that should have been passed on, while no parent was up."""
        self.limited = 0
        """Samples that should have been passed on, beyond the rate or the parent's capacity."""
        self.refused: Counter[str] = Counter()
        """Requests, by reason."""
        self.latencies: deque[float] = deque(maxlen=LAST_REQUESTS)
        """Duration of the last requests, in seconds."""
        self.seconds = 0.0
        """Total duration of all requests, in seconds."""

    def took(self, seconds: float) -> None:
        """Record the duration of a request."""
        self.latencies.append(seconds)
        self.seconds += seconds

    def quantile(self, share: float) -> float:
        """Return the given quantile of the last requests' durations."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0

    def answered(self, nodes: Iterable[str], exits: Iterable[int]) -> None:
        """Count answers by node and exit; new pairs beyond the limit are counted as one."""
        for key, count in Counter(zip(nodes, exits, strict=True)).items():
            known = key in self.answers or len(self.answers) < MOST_ANSWERERS
            self.answers[key if known else OTHERS] += count

    def text(self, gauges: Mapping[str, float], parents_up: Mapping[str, bool]) -> str:
        """Return the counts in Prometheus' text format; `gauges` are current values."""
        return "\n".join([*self._lines(gauges), *_parents(parents_up), ""])

    def _lines(self, gauges: Mapping[str, float]) -> Iterator[str]:
        yield from _counter("requests", self.requests, "kind")
        yield "# TYPE nestfl_answers_total counter"
        for (node, number), count in sorted(self.answers.items()):
            yield f'nestfl_answers_total{{node="{_escaped(node)}",exit="{number}"}} {count}'
        for name in ("samples", "forwarded", "degraded", "limited"):
            yield f"# TYPE nestfl_{name}_total counter"
            yield f"nestfl_{name}_total {getattr(self, name)}"
        yield from _counter("refused", self.refused, "reason")
        yield "# TYPE nestfl_latency_seconds summary"
        for share in QUANTILES:
            yield f'nestfl_latency_seconds{{quantile="{share}"}} {self.quantile(share):.6f}'
        yield f"nestfl_latency_seconds_sum {self.seconds:.6f}"
        yield f"nestfl_latency_seconds_count {sum(self.requests.values())}"
        for name, value in {**gauges, "memory_bytes": process_memory()}.items():
            yield f"# TYPE nestfl_{name} gauge"
            yield f"nestfl_{name} {value:g}" if value < 1e5 else f"nestfl_{name} {value:.0f}"


def process_memory(process: int | str = "self") -> int:
    """Return a process's memory in bytes, where the system reports it; else this process's peak."""
    statm = Path(f"/proc/{process}/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def _counter(name: str, counts: Counter[str], label: str) -> Iterator[str]:
    yield f"# TYPE nestfl_{name}_total counter"
    for key, count in sorted(counts.items()):
        yield f'nestfl_{name}_total{{{label}="{_escaped(key)}"}} {count}'


def _parents(up: Mapping[str, bool]) -> Iterator[str]:
    if up:
        yield "# TYPE nestfl_parent_up gauge"
    for name, is_up in up.items():
        yield f'nestfl_parent_up{{parent="{_escaped(name)}"}} {int(is_up)}'


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
