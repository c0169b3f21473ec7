"""The records of query, train and evaluate, as typed objects.

What the server reads of a reply is here: `Profile.read`, `Trained.read`, `Evaluation.read` and
`read_slice` return what can be used, or raise ProtocolError, whatever the bytes are.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from data.spec import DatasetSpec
from models.slicing import Slice
from models.task import Task
from protocol.arrays import unpack
from protocol.attack import Sabotage
from protocol.code import VERSION, code_hash
from protocol.printable import printable
from protocol.reading import (
    LONGEST_SHOWN,
    MOST,
    ProtocolError,
    check_names,
    number,
    reading,
    shown,
    text,
    whole,
    within,
)
from protocol.train_settings import StatisticsKind, TrainSettings

ARRAYS, WORK, PROFILE, CHOICE, METRICS = "arrays", "work", "profile", "choice", "metrics"
MOST_CLIENTS = 10**6
"""That a data set can be parted into."""
LEAST_BUDGET = 1e-6
"""Of the full model. What affords less is no device of this fleet, and nothing is that small."""
MOST_STAGES = 100
"""Of a network."""
LONGEST_PROFILE, LONGEST_WORK = 2_000, 10**6
"""Bytes of JSON."""


Part = Literal["test", "validation"]
"""Of a client's data: what it may be asked to test a network on."""


class OtherCodeError(ProtocolError):
    """The other side runs another version of this app."""


@dataclass(frozen=True)
class Recall:
    """The memory that a client's round starts from: what it kept after an earlier one."""

    run: str
    """Tells this run from all others."""
    round: int = 0
    """The last round of which the server took this client's reply; 0 starts afresh."""
    turn: int = 0
    """Tells the assignments of a client in one round apart."""
    keep: int = 2
    """How many of its memories a client keeps: a resumed run may go back some rounds."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[0-9a-z]{1,64}", text(self.run, "run", 64)):
            raise ProtocolError(f"run is {shown(self.run)}: expected small letters and digits")
        for name in ("round", "turn"):
            whole(getattr(self, name), name)
        whole(self.keep, "keep", 2)


@dataclass(frozen=True)
class Work:
    """What the server asks of a client besides the weights."""

    task: Task
    slice: Slice
    dataset: DatasetSpec
    train: TrainSettings
    method: str = ""
    """The method whose client half does it; none for a question that needs none."""
    settings: Any = field(default_factory=dict)
    """The method's own: its dataclass where they are sent, their names and values where read."""
    told: Mapping[str, Any] = field(default_factory=dict)
    """What the method tells this client in this round."""
    recall: Recall | None = None
    """Where the method's clients remember something from round to round."""
    round: int = 1
    seed: int = 0
    """Of this client in this round."""
    statistics: StatisticsKind = "own"
    """Of batch norm in a client's test: those of its training examples, or of each test batch."""
    part: Part = "test"
    """Of the client's data, which a test is made on."""
    personal: bool = False
    """Whether the client tests what it has trained on its test part, before it sends it back."""
    sabotage: Sabotage | None = None
    """What it does to the others, where it is one of the run's attackers."""
    vocabulary: str | None = None
    """The identity of the run's pre-trained tokenizer, where a device is asked what it is."""

    def record(self) -> ConfigRecord:
        """Return all but what is as by default, which both sides know, in few bytes."""
        packed = _squeeze(json.dumps(_changed(self), separators=(",", ":")))
        return ConfigRecord({"code": code_hash(), "version": VERSION, "packed": packed})

    @classmethod
    def read(cls, content: RecordDict) -> Work:
        """Return the work in a message, from a server that runs the same code."""
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
                "recall": Recall(**fields["recall"]) if "recall" in fields else None,
                "sabotage": Sabotage(**fields["sabotage"]) if "sabotage" in fields else None,
            }
        )


def check_code(code: object, version: object) -> None:
    """Raise unless the other side runs this protocol and this code."""
    if version != VERSION:
        raise OtherCodeError(
            f"protocol version {shown(version)} there, {VERSION} here: update one side"
        )
    if code != code_hash():
        raise OtherCodeError(
            f"server and client run different code ({shown(code)} and {code_hash()!r}): in a "
            "simulation, a SuperLink that was started in another checkout serves that checkout's "
            "clients"
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
        if self.partitions is not None:
            whole(self.partitions, "partitions", 1, MOST_CLIENTS)
        if self.partition is not None:
            whole(self.partition, "partition", 0, (self.partitions or MOST_CLIENTS) - 1)
        whole(self.examples, "examples")
        if self.budget is not None:
            within(self.budget, "budget", LEAST_BUDGET, MOST)
        device = printable(text(self.device, "device", LONGEST_SHOWN))
        object.__setattr__(self, "device", device)

    def record(self) -> ConfigRecord:
        return ConfigRecord({"json": json.dumps(asdict(self))})

    @classmethod
    def read(cls, content: RecordDict) -> Profile:
        """Return a client's profile, or raise ProtocolError."""
        with reading("a profile"):
            check_names(content, (PROFILE,), "the reply", "names")
            record = record_of(content, PROFILE, ConfigRecord)
            check_names(record, ("json",), PROFILE)
            fields = json.loads(text(record["json"], PROFILE, LONGEST_PROFILE))
            check_code(fields["code"], fields["version"])
            return cls(**fields)


@dataclass(frozen=True)
class Choice:
    """The architecture that a client chose: how many blocks of each stage, and their width."""

    blocks: tuple[int, ...]
    width: tuple[float, ...]

    def __post_init__(self) -> None:
        for count in self.blocks:
            whole(count, "blocks", 1)
        for share in self.width:
            within(share, "width", 0, 1)

    @classmethod
    def of(cls, slice: Slice) -> Choice:
        """Return a slice of first blocks and of a width for each stage as a choice."""
        assert slice.blocks is not None
        assert isinstance(slice.width, tuple)
        return cls(tuple(map(len, slice.blocks)), slice.width)

    def record(self) -> ConfigRecord:
        return ConfigRecord({"blocks": list(self.blocks), "width": list(self.width)})

    @classmethod
    def read(cls, content: RecordDict) -> Choice:
        """Return a client's choice, or raise ProtocolError."""
        with reading("a choice"):
            check_names(content, (CHOICE,), "the reply", "names")
            record = record_of(content, CHOICE, ConfigRecord)
            check_names(record, ("blocks", "width"), CHOICE)
            for name in ("blocks", "width"):
                if not isinstance(record[name], list) or len(record[name]) > MOST_STAGES:  # type: ignore[arg-type]
                    raise ProtocolError(f"{name} is {shown(record[name])}: expected a short list")
            return cls(tuple(record["blocks"]), tuple(record["width"]))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Personal:
    """What a client has trained, on its own test part: before any other is averaged with it."""

    accuracy: float
    loss: float


@dataclass(frozen=True)
class Trained:
    """What a client says of its training."""

    examples: int
    loss: float
    seconds: float
    forgot: bool = False
    """Whether the client has lost what it should remember, and started afresh."""
    classes: tuple[int, ...] | None = None
    """The classes of its training examples, where its method tells the server."""
    personal: Personal | None = None
    """What it has trained on its own test part, where the server asks, and it has one."""

    def record(self) -> MetricRecord:
        record = MetricRecord(
            {"num-examples": self.examples, "loss": self.loss, "seconds": self.seconds}
        )
        if self.forgot:
            record["forgot"] = 1
        if self.classes is not None:
            record["classes"] = list(self.classes)
        if self.personal is not None:
            record["personal"] = [self.personal.accuracy, self.personal.loss]
        return record

    @classmethod
    def read(cls, content: RecordDict) -> Trained:
        """Return a client's report of its training, or raise ProtocolError."""
        with reading("a report"):
            metrics = record_of(content, METRICS, MetricRecord)
            optional = [name for name in ("forgot", "classes", "personal") if name in metrics]
            check_names(metrics, ("num-examples", "loss", "seconds", *optional), METRICS)
            return cls(
                whole(metrics["num-examples"], "num-examples"),
                number(metrics["loss"], "loss"),
                within(metrics["seconds"], "seconds", 0, MOST),
                "forgot" in metrics,
                _classes(metrics["classes"]) if "classes" in metrics else None,
                _personal(metrics["personal"]) if "personal" in metrics else None,
            )


def _classes(given: object) -> tuple[int, ...]:
    """Return the classes that a client says it has: some, in ascending order."""
    found = given if isinstance(given, list) else []
    classes = tuple(whole(each, "a class") for each in found)
    if not classes or list(classes) != sorted(set(classes)):
        raise ProtocolError(f"classes are {shown(given)}: expected ascending numbers, each once")
    return classes


def _personal(given: object) -> Personal:
    """Return the accuracy and the loss that a client says its trained network has."""
    if not isinstance(given, list) or len(given) != 2:
        raise ProtocolError(f"personal is {shown(given)}: expected an accuracy and a loss")
    return Personal(within(given[0], "accuracy", 0, 1), within(given[1], "loss", 0, MOST))


@dataclass(frozen=True, eq=False)
class Answered:
    """A network's answers to examples: how sure it is of each, and whether it is right."""

    confidence: Tensor
    right: Tensor


@dataclass(frozen=True)
class Evaluation:
    """A network on a client's data: the accuracy and the loss of each exit, and of their ensemble.

    The last is the network's own answer: an ensemble is tested where it is that.
    """

    examples: int
    accuracy: tuple[float, ...]
    loss: tuple[float, ...]
    answered: Answered | None = field(default=None, compare=False)
    """The network's own answers one by one, where they stay on this side."""
    confusion: Tensor | None = field(default=None, compare=False)
    """[classes, classes]: how many examples of each class it gave which answer, likewise."""

    def record(self) -> MetricRecord:
        return MetricRecord(
            {
                "num-examples": self.examples,
                "accuracy": list(self.accuracy),
                "loss": list(self.loss),
            }
        )

    @classmethod
    def read(cls, content: RecordDict, exits: int) -> Evaluation:
        """Return a client's test of so many exits, an ensemble counted, or raise ProtocolError."""
        with reading("a report"):
            check_names(content, (METRICS,), "the reply", "names")
            metrics = record_of(content, METRICS, MetricRecord)
            check_names(metrics, ("num-examples", "accuracy", "loss"), METRICS)
            accuracy, loss = metrics["accuracy"], metrics["loss"]
            for values in (accuracy, loss):
                if not isinstance(values, list) or len(values) != exits:
                    raise ProtocolError(f"{shown(values)} for {exits} exits: expected one of each")
            return cls(
                whole(metrics["num-examples"], "num-examples"),
                tuple(within(share, "accuracy", 0, 1) for share in accuracy),  # type: ignore[union-attr]
                tuple(number(each, "loss") for each in loss),  # type: ignore[union-attr]
            )


Kind = TypeVar("Kind", ArrayRecord, ConfigRecord, MetricRecord)


def record_of(content: RecordDict, name: str, kind: type[Kind]) -> Kind:
    """Return the record of a reply that has this name, if it is of that kind."""
    found = content.get(name)
    if not isinstance(found, kind):
        raise ProtocolError(f"the reply has no {kind.__name__} {name!r}", "names")
    return found


def read_slice(content: RecordDict, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a reply that has them and a report, named and shaped like `like`."""
    with reading("a reply"):
        check_names(content, (ARRAYS, METRICS), "the reply", "names")
        return unpack(record_of(content, ARRAYS, ArrayRecord), like)


def footprint(content: RecordDict) -> int:
    """Return the bytes that a message's content takes in memory, or somewhat less."""
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
    """Return the bytes of a message's content: the arrays, and the settings beside them.

    The few numbers of a report are not counted.
    """
    arrays = sum(len(a.data) for record in content.array_records.values() for a in record.values())
    settings = [value for record in content.config_records.values() for value in record.values()]
    return arrays + sum(len(v if isinstance(v, bytes) else str(v)) for v in settings)


@cache
def _usual() -> bytes:
    """Return the words that settings are made of, which both sides know and zlib need not send."""
    settings = (Task(""), Slice(), DatasetSpec(), TrainSettings())
    return json.dumps([asdict(each) for each in settings], separators=(",", ":")).encode()


def _squeeze(text: str) -> bytes:
    packer = zlib.compressobj(9, zdict=_usual())
    return packer.compress(text.encode()) + packer.flush()


def _expand(packed: bytes) -> str:
    """Return the text that was squeezed: a few bytes may not fill a device's memory."""
    expander = zlib.decompressobj(zdict=_usual())
    plain = expander.decompress(packed, LONGEST_WORK)
    if not expander.eof:
        raise ProtocolError(f"work that is cut short, or longer than {LONGEST_WORK} bytes")
    return plain.decode()


def _changed(value: Any) -> Any:
    """Return a dataclass as a dictionary of the fields that are not as by default."""
    if not is_dataclass(value) or isinstance(value, type):
        return value
    usual = {
        own.name: own.default if own.default_factory is MISSING else own.default_factory()
        for own in fields(value)
    }
    given = {field.name: getattr(value, field.name) for field in fields(value)}
    return {name: _changed(own) for name, own in given.items() if own != usual[name]}


def _tuples(value: Any) -> Any:
    """JSON's lists as the tuples they were."""
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return value
