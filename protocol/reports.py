"""The records of a client's reports: its profile, its choice, its training, a test.

The server reads a reply by `Profile.read`, `Choice.read`, `Trained.read` or `Evaluation.read`: for
any bytes they return valid values or raise ProtocolError.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from flwr.app import ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from models.slicing import Slice
from protocol.code import VERSION, check_code, code_hash
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
from protocol.records import CHOICE, METRICS, PROFILE, record_of
from protocol.work import Part

MOST_CLIENTS = 10**6
"""Most clients of a data set."""
LEAST_BUDGET = 1e-6
"""Smallest budget, as a share of the full model: no network of a fleet is that small."""
MOST_STAGES = 100
"""Most stages of a network."""
LONGEST_PROFILE = 2_000
"""Most bytes of a profile's JSON."""


@dataclass(frozen=True)
class Profile:
    """A client's description of itself."""

    partition: int | None
    partitions: int | None
    """The part of the run's data set that it holds, and the number of parts; None: its own data."""
    examples: int
    """Number of its training examples: no reply may claim more."""
    budget: float | None
    """Share of the full model that it affords; None: by the fleet's config."""
    device: str
    validation: int = 0
    """Examples of its validation part; a client without one is not asked to test on it."""
    test: int = 0
    """Examples of its test part, likewise."""
    measured: bool = False
    """Whether the device has measured the budget, rather than its owner named it."""
    code: str = field(default_factory=code_hash)
    version: int = VERSION

    def __post_init__(self) -> None:
        if self.partitions is not None:
            whole(self.partitions, "partitions", 1, MOST_CLIENTS)
        if self.partition is not None:
            whole(self.partition, "partition", 0, (self.partitions or MOST_CLIENTS) - 1)
        for part in ("examples", "validation", "test"):
            whole(getattr(self, part), part)
        if self.budget is not None:
            within(self.budget, "budget", LEAST_BUDGET, MOST)
        if type(self.measured) is not bool or (self.measured and self.budget is None):
            raise ProtocolError(f"measured is {shown(self.measured)}: expected true of a budget")
        device = printable(text(self.device, "device", LONGEST_SHOWN))
        object.__setattr__(self, "device", device)

    def of_part(self, part: Part) -> int:
        """Return how many examples the client's validation or test part has."""
        return self.validation if part == "validation" else self.test

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
    """The architecture that a client chose: number of blocks and width of each stage."""

    blocks: tuple[int, ...]
    width: tuple[float, ...]

    def __post_init__(self) -> None:
        for count in self.blocks:
            whole(count, "blocks", 1)
        for share in self.width:
            within(share, "width", 0, 1)

    @classmethod
    def of(cls, slice: Slice) -> Choice:
        """Return the choice of a slice with first blocks and a width for each stage."""
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
    """Test of a client's trained network on its own test part, before averaging."""

    accuracy: float
    loss: float


@dataclass(frozen=True)
class Trained:
    """A client's report of its training."""

    examples: int
    loss: float
    seconds: float
    forgot: bool = False
    """True if the client has lost its memory, and started without it."""
    classes: tuple[int, ...] | None = None
    """The classes of its training examples, where its method reports them."""
    personal: Personal | None = None
    """Test of its trained network on its own test part, where the server asks for it."""

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
    """Return the classes that a client reports: at least one, in ascending order."""
    found = given if isinstance(given, list) else []
    classes = tuple(whole(each, "a class") for each in found)
    if not classes or list(classes) != sorted(set(classes)):
        raise ProtocolError(f"classes are {shown(given)}: expected ascending numbers, each once")
    return classes


def _personal(given: object) -> Personal:
    """Return the accuracy and the loss that a client reports for its trained network."""
    if not isinstance(given, list) or len(given) != 2:
        raise ProtocolError(f"personal is {shown(given)}: expected an accuracy and a loss")
    return Personal(within(given[0], "accuracy", 0, 1), within(given[1], "loss", 0, MOST))


@dataclass(frozen=True, eq=False)
class Answered:
    """A network's answers to examples: the confidence of each, and whether it is right."""

    confidence: Tensor
    right: Tensor


@dataclass(frozen=True)
class Evaluation:
    """A test on a client's data: the accuracy and the loss of each exit, and of their ensemble.

    The last entry is the network's own answer: an ensemble is tested only where it is that.
    """

    examples: int
    accuracy: tuple[float, ...]
    loss: tuple[float, ...]
    answered: Answered | None = field(default=None, compare=False)
    """The network's own answers one by one, where they stay on this side."""
    confusion: Tensor | None = field(default=None, compare=False)
    """[classes, classes]: number of examples by class and answer, where they stay on this side."""

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
        """Return a client's test of `exits` exits, ensemble included, or raise ProtocolError."""
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
