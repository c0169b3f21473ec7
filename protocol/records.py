"""Names of the records that cross between server and client, and helpers for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from protocol.arrays import unpack
from protocol.reading import ProtocolError, check_names, reading

ARRAYS, WORK, PROFILE, CHOICE, METRICS = "arrays", "work", "profile", "choice", "metrics"

Kind = TypeVar("Kind", ArrayRecord, ConfigRecord, MetricRecord)


def record_of(content: RecordDict, name: str, kind: type[Kind]) -> Kind:
    """Return a reply's record of this name, or raise ProtocolError if it is of another kind."""
    found = content.get(name)
    if not isinstance(found, kind):
        raise ProtocolError(f"the reply has no {kind.__name__} {name!r}", "names")
    return found


def read_slice(content: RecordDict, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a reply with tensors and a report, named and shaped like `like`."""
    with reading("a reply"):
        check_names(content, (ARRAYS, METRICS), "the reply", "names")
        return unpack(record_of(content, ARRAYS, ArrayRecord), like)


def footprint(content: RecordDict) -> int:
    """Return a lower estimate of the bytes that a message's content takes in memory."""
    return _bytes_of(content)


def _bytes_of(value: object) -> int:
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, Array):
        return sum(map(_bytes_of, (value.dtype, value.shape, value.stype, value.data)))
    if isinstance(value, Mapping):
        return sum(_bytes_of(key) + _bytes_of(item) for key, item in value.items())
    return sum(map(_bytes_of, value)) if isinstance(value, list | tuple) else 8


def size(content: RecordDict) -> int:
    """Return the bytes of a message's content: its arrays and its settings.

    The few numbers of a report are not counted.
    """
    arrays = sum(len(a.data) for record in content.array_records.values() for a in record.values())
    settings = [value for record in content.config_records.values() for value in record.values()]
    return arrays + sum(len(v if isinstance(v, bytes) else str(v)) for v in settings)
