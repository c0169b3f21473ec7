"""The record of what the server asks of a client, beside the weights.

Both sides run the same code, so all that is as by default stays at home, and words that both know
take no room.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any, Literal

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
"""Bytes of JSON."""

Part = Literal["test", "validation"]
"""Of a client's data: what it may be asked to test a network on."""


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
