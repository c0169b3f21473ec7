"""The records of query, train and evaluate, as typed objects.

A slice travels as one flat array per dtype: names and shapes follow from the slice itself, which
both sides build, so only its values cross the wire.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from data.spec import DatasetSpec
from models.slicing import Slice
from models.task import Task
from protocol.code import VERSION, code_hash
from protocol.printable import printable
from protocol.settings import StatisticsKind, TrainSettings

ARRAYS, WORK, PROFILE, METRICS = "arrays", "work", "profile", "metrics"


class ProtocolError(ValueError):
    """A record that the other side cannot have meant; it is quoted only as far as is safe."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class OtherCodeError(ProtocolError):
    """The other side runs another version of this app."""


@dataclass(frozen=True)
class Work:
    """What the server asks of a client besides the weights."""

    task: Task
    slice: Slice
    dataset: DatasetSpec
    train: TrainSettings
    objective: str = "cross-entropy"
    objective_settings: Mapping[str, Any] = field(default_factory=dict)
    round: int = 1
    seed: int = 0
    """Of this client in this round."""
    statistics: StatisticsKind = "own"
    """Of batch norm in a client's test: those of its training examples, or of each test batch."""

    def record(self) -> ConfigRecord:
        """All but what is as by default, which both sides know, in few bytes: slices are small."""
        packed = _squeeze(json.dumps(_changed(self), separators=(",", ":")))
        return ConfigRecord({"code": code_hash(), "version": VERSION, "packed": packed})

    @classmethod
    def read(cls, content: RecordDict) -> Work:
        """The work in a message, from a server that runs the same code."""
        record = content.config_records[WORK]
        check_code(str(record["code"]), int(str(record["version"])))
        fields = _tuples(json.loads(_expand(bytes(record["packed"]))))  # type: ignore[arg-type]
        return cls(
            **fields
            | {
                "task": Task(**fields["task"]),
                "slice": Slice(**fields["slice"]),
                "dataset": DatasetSpec(**fields["dataset"]),
                "train": TrainSettings(**fields["train"]),
            }
        )


def check_code(code: str, version: int) -> None:
    """Raise unless the other side runs this protocol and this code."""
    if version != VERSION:
        raise OtherCodeError(f"protocol version {version} there, {VERSION} here: update one side")
    if code != code_hash():
        raise OtherCodeError(
            f"server and client run different code ({code} and {code_hash()}): in a simulation, "
            "a SuperLink that was started in another checkout serves that checkout's clients"
        )


@dataclass(frozen=True)
class Profile:
    """What a client says of itself."""

    partition: int | None
    partitions: int | None
    """Which part of the run's data set it holds, and of how many; None has data of its own."""
    examples: int
    """For training: no reply may claim more."""
    budget: float | None
    """The share of the full model that it affords; None leaves that to the fleet's config."""
    device: str
    code: str = field(default_factory=code_hash)
    version: int = VERSION

    def __post_init__(self) -> None:
        _check_whole(self.partition, 0, "partition")
        _check_whole(self.partitions, 1, "partitions")
        _check_whole(self.examples, 0, "examples")
        if self.examples is None:
            raise ProtocolError("examples is None: expected a whole number of at least 0")
        object.__setattr__(self, "device", printable(str(self.device)))
        budget = self.budget
        if budget is not None and not (isinstance(budget, int | float) and 0 < budget < math.inf):
            raise ProtocolError(f"budget is {budget!r}: expected a number above 0")

    def record(self) -> ConfigRecord:
        return ConfigRecord({"json": json.dumps(asdict(self))})

    @classmethod
    def read(cls, content: RecordDict) -> Profile:
        """A client's profile; anything else is a ProtocolError."""
        try:
            fields = json.loads(str(content.config_records[PROFILE]["json"]))
            check_code(fields["code"], fields["version"])
            return cls(**fields)
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ProtocolError(f"a profile that cannot be read: {error!r}") from error


def _check_whole(value: object, least: int, name: str) -> None:
    if value is not None and not (type(value) is int and value >= least):
        raise ProtocolError(f"{name} is {value!r}: expected a whole number of at least {least}")


@dataclass(frozen=True)
class Trained:
    """What a client says of its training."""

    examples: int
    loss: float
    seconds: float

    def record(self) -> MetricRecord:
        return MetricRecord(
            {"num-examples": self.examples, "loss": self.loss, "seconds": self.seconds}
        )

    @classmethod
    def read(cls, content: RecordDict) -> Trained:
        metrics = content.metric_records[METRICS]
        return cls(*(_number(metrics, key) for key in ("num-examples", "loss", "seconds")))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Evaluation:
    """A network on a client's data: the accuracy and the loss of each exit."""

    examples: int
    accuracy: tuple[float, ...]
    loss: tuple[float, ...]

    def record(self) -> MetricRecord:
        return MetricRecord(
            {
                "num-examples": self.examples,
                "accuracy": list(self.accuracy),
                "loss": list(self.loss),
            }
        )

    @classmethod
    def read(cls, content: RecordDict) -> Evaluation:
        metrics = content.metric_records[METRICS]
        accuracy, loss = (metrics[key] for key in ("accuracy", "loss"))
        if not isinstance(accuracy, list) or not isinstance(loss, list):
            raise ProtocolError("expected lists of accuracies and losses")
        if not accuracy or not all(0 <= share <= 1 for share in accuracy):
            raise ProtocolError(f"accuracies {accuracy}: expected shares from 0 to 1")
        return cls(int(_number(metrics, "num-examples")), tuple(accuracy), tuple(loss))


def _number(metrics: MetricRecord, key: str) -> float:
    value = metrics.get(key)
    if isinstance(value, int | float):
        return value
    raise ProtocolError(f"{key} is {value!r}: expected a number")


def pack(state: Mapping[str, Tensor]) -> ArrayRecord:
    """A slice's tensors as one flat array per dtype, in the order of its names."""
    groups: dict[str, list[Tensor]] = {}
    for tensor in state.values():
        groups.setdefault(_kind(tensor), []).append(tensor.detach().cpu().reshape(-1))
    return ArrayRecord({kind: Array(torch.cat(flat).numpy()) for kind, flat in groups.items()})


def unpack(record: ArrayRecord, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a packed slice that has the names, shapes and dtypes of `like`."""
    expected: dict[str, int] = {}
    for tensor in like.values():
        expected[_kind(tensor)] = expected.get(_kind(tensor), 0) + tensor.numel()
    try:
        flat = {kind: torch.from_numpy(array.numpy()) for kind, array in record.items()}
    except Exception as error:  # whatever bytes the other side has sent
        raise ProtocolError(f"arrays that cannot be read: {error!r}") from error
    found = {kind: tensor.numel() for kind, tensor in flat.items()}
    if found != expected or any(_kind(t) != kind or t.ndim != 1 for kind, t in flat.items()):
        raise ProtocolError(f"a slice of {found} values, expected {expected}")
    state, taken = {}, dict.fromkeys(flat, 0)
    for name, tensor in like.items():
        kind, size = _kind(tensor), tensor.numel()
        state[name] = flat[kind][taken[kind] : taken[kind] + size].view(tensor.shape)
        taken[kind] += size
    return state


def size(content: RecordDict) -> int:
    """The bytes of a message's content: the arrays, and the settings beside them.

    The few numbers of a report are not counted.
    """
    arrays = sum(len(a.data) for record in content.array_records.values() for a in record.values())
    settings = [value for record in content.config_records.values() for value in record.values()]
    return arrays + sum(len(v if isinstance(v, bytes) else str(v)) for v in settings)


@cache
def _usual() -> bytes:
    """The words that settings are made of, which both sides know: what zlib need not send."""
    settings = (Task(""), Slice(), DatasetSpec(), TrainSettings())
    return json.dumps([asdict(each) for each in settings], separators=(",", ":")).encode()


def _squeeze(text: str) -> bytes:
    packer = zlib.compressobj(9, zdict=_usual())
    return packer.compress(text.encode()) + packer.flush()


def _expand(packed: bytes) -> str:
    return zlib.decompressobj(zdict=_usual()).decompress(packed).decode()


def _kind(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _changed(value: Any) -> Any:
    """A dataclass as a dictionary of the fields that are not as by default."""
    if not is_dataclass(value):
        return value
    return {
        field.name: _changed(own)
        for field in fields(value)
        if (own := getattr(value, field.name)) != field.default or field.default is MISSING
    }


def _tuples(value: Any) -> Any:
    """JSON's lists as the tuples they were."""
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return value
