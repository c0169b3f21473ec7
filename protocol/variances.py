"""The record of how much a client's gradients vary, for each exit that it holds."""

from __future__ import annotations

from dataclasses import dataclass

from flwr.app import MetricRecord, RecordDict

from protocol.reading import ProtocolError, check_names, reading, shown, whole, within
from protocol.records import METRICS, record_of


@dataclass(frozen=True)
class Variances:
    """A client's gradient variances, of the first exit first, and of how many examples they are."""

    examples: int
    exits: tuple[float, ...]

    def record(self) -> MetricRecord:
        return MetricRecord({"num-examples": self.examples, "variances": list(self.exits)})

    @classmethod
    def read(cls, content: RecordDict, exits: int) -> Variances:
        """Return a client's variances of so many exits, or raise ProtocolError."""
        with reading("a report"):
            check_names(content, (METRICS,), "the reply", "names")
            metrics = record_of(content, METRICS, MetricRecord)
            check_names(metrics, ("num-examples", "variances"), METRICS)
            found = metrics["variances"]
            if not isinstance(found, list) or len(found) != exits:
                raise ProtocolError(f"{shown(found)} for {exits} exits: expected one of each")
            return cls(
                whole(metrics["num-examples"], "num-examples", 1),
                tuple(within(each, "a variance", LEAST, MOST) for each in found),
            )


LEAST, MOST = 1e-30, 1e30
"""Of a variance that can be told: weights go by its inverse."""
