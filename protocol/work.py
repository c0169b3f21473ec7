"""The record of the server's request to a client, besides the weights.

Both sides run the same code, so default values are not sent, and words that both know take no
space.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from functools import cache, lru_cache
from typing import Any, Literal, TypeVar

from flwr.app import ConfigRecord, RecordDict

from data.spec import DatasetSpec
from models.slicing import Slice
from models.task import Task
from protocol.attack import Sabotage
from protocol.code import VERSION, check_code, code_hash
from protocol.reading import ProtocolError, shown, text, whole
from protocol.records import WORK
from protocol.train_settings import StatisticsKind, TrainSettings

LONGEST_WORK = 10**6
"""Most bytes of the JSON."""

Settings = TypeVar("Settings")

Part = Literal["test", "validation"]
"""Part of a client's data on which it may test a network."""


@dataclass(frozen=True)
class Recall:
    """The memory that a client's round starts from: the one it kept after an earlier round."""

    run: str
    """Identifies the run."""
    round: int = 0
    """Last round in which the server accepted this client's reply; default (0): no memory."""
    turn: int = 0
    """Number that separates the assignments of a client in one round."""
    keep: int = 2
    """Memories that a client keeps: a resumed run may go back some rounds."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[0-9a-z]{1,64}", text(self.run, "run", 64)):
            raise ProtocolError(f"run is {shown(self.run)}: expected small letters and digits")
        for name in ("round", "turn"):
            whole(getattr(self, name), name)
        whole(self.keep, "keep", 2)


@dataclass(frozen=True)
class Work:
    """The server's request to a client, besides the weights."""

    task: Task
    slice: Slice
    dataset: DatasetSpec
    train: TrainSettings
    method: str = ""
    """The method whose client half does the work; empty for a question without a method."""
    settings: Any = field(default_factory=dict)
    """The method's settings: a dataclass at the sender, names and values at the reader."""
    told: Mapping[str, Any] = field(default_factory=dict)
    """Values from the method for this client in this round."""
    recall: Recall | None = None
    """The memory to start from, where the method's clients remember."""
    round: int = 1
    seed: int = 0
    """Seed of this client in this round."""
    statistics: StatisticsKind = "own"
    """Source of batch norm's statistics in a test: the training examples, or each test batch."""
    part: Part = "test"
    """Part of the client's data that a test uses."""
    personal: bool = False
    """Test the trained slice on the client's test part before it is sent back."""
    sabotage: Sabotage | None = None
    """Instructions of an attacker; None for an honest client."""
    vocabulary: str | None = None
    """Identity of the run's pre-trained tokenizer, in an enrolment question."""

    def record(self) -> ConfigRecord:
        """Return the record, in few bytes: default values, which both sides know, are left out."""
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
                "task": made(Task, fields["task"]),
                "slice": made(Slice, fields["slice"]),
                "dataset": made(DatasetSpec, fields["dataset"]),
                "train": made(TrainSettings, fields["train"]),
                "recall": Recall(**fields["recall"]) if "recall" in fields else None,
                "sabotage": Sabotage(**fields["sabotage"]) if "sabotage" in fields else None,
            }
        )


def made(kind: Callable[..., Settings], values: Mapping[str, Any]) -> Settings:
    """Return a frozen dataclass of a message's values; equal ones are checked only once.

    Most messages of a run repeat its task, data and settings.
    """
    found: Settings = _made(kind, json.dumps(values, separators=(",", ":")))
    return found


@lru_cache(maxsize=64)
def _made(kind: Callable[..., Any], values: str) -> Any:
    return kind(**_tuples(json.loads(values)))


@cache
def _usual() -> bytes:
    """Return the usual words of settings, as a dictionary for zlib: they need not be sent."""
    settings = (Task(""), Slice(), DatasetSpec(), TrainSettings())
    return json.dumps([asdict(each) for each in settings], separators=(",", ":")).encode()


def _squeeze(text: str) -> bytes:
    packer = zlib.compressobj(9, zdict=_usual())
    return packer.compress(text.encode()) + packer.flush()


def _expand(packed: bytes) -> str:
    """Return the uncompressed text, of limited length: few bytes may not fill a device's memory."""
    expander = zlib.decompressobj(zdict=_usual())
    plain = expander.decompress(packed, LONGEST_WORK)
    if not expander.eof:
        raise ProtocolError(f"work that is cut short, or longer than {LONGEST_WORK} bytes")
    return plain.decode()


def _changed(value: Any) -> Any:
    """Return a dataclass as a dictionary of the fields that differ from their defaults."""
    if not is_dataclass(value) or isinstance(value, type):
        return value
    usual = {
        own.name: own.default if own.default_factory is MISSING else own.default_factory()
        for own in fields(value)
    }
    given = {field.name: getattr(value, field.name) for field in fields(value)}
    return {name: _changed(own) for name, own in given.items() if own != usual[name]}


def _tuples(value: Any) -> Any:
    """Return a JSON value with its lists turned back into tuples."""
    if isinstance(value, list):
        return tuple(_tuples(item) for item in value)
    if isinstance(value, dict):
        return {key: _tuples(item) for key, item in value.items()}
    return value
