"""The bodies of requests and answers: tensors in the safetensors format, and nothing else.

The format is compact, and reading it runs no code, whatever the bytes are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from safetensors.torch import load, save
from torch import Tensor

from inference.serving.node_part import DTYPES, Form
from inference.serving.refusal import MalformedError, UnfitError
from models.families import Features

MEDIA_TYPE = "application/vnd.safetensors"
TIME_LEFT = "X-Time-Left"
"""Header with the seconds that the caller waits for the answer."""
HEADER = 64 * 1024
"""Most bytes of a body besides its values."""
LONGEST_NAME = 256
"""Most bytes of a node's name."""
ANSWER = 4 + 4 + 1 + 1 + 4 + LONGEST_NAME + 1
"""Most bytes of one answer."""
DEGRADED, LIMITED = 1, 2
"""Flags of an answer that should have come from another node: DEGRADED, because no parent was
reached; LIMITED, because the transfer rate or the parent's capacity was exhausted."""


@dataclass(frozen=True, eq=False)
class Answers:
    """One answer for each sample of a request."""

    classes: Tensor
    """int32 [n]."""
    confidence: Tensor
    """float32 [n]: the largest softmax score."""
    exits: Tensor
    """uint8 [n]: the number of the exit that answered, counted from 1."""
    flags: Tensor
    """uint8 [n]."""
    nodes: tuple[str, ...]
    """The name of the node that answered each sample."""

    def rows(self, rows: slice) -> Answers:
        """Return some of the answers."""
        return Answers(
            self.classes[rows],
            self.confidence[rows],
            self.exits[rows],
            self.flags[rows],
            self.nodes[rows],
        )

    def replaced(self, rows: Tensor, others: Answers) -> Answers:
        """Return the answers, with others in some rows."""
        nodes = list(self.nodes)
        for row, node in zip(rows.tolist(), others.nodes, strict=True):
            nodes[row] = node
        return Answers(
            self.classes.index_copy(0, rows, others.classes),
            self.confidence.index_copy(0, rows, others.confidence),
            self.exits.index_copy(0, rows, others.exits),
            self.flags.index_copy(0, rows, others.flags),
            tuple(nodes),
        )

    def flagged(self, rows: Tensor, flag: int) -> Answers:
        """Return the answers, with a flag in some rows."""
        flags = self.flags.clone()
        flags[rows] |= flag
        return replace(self, flags=flags)

    def pack(self) -> bytes:
        names = sorted(set(self.nodes))
        numbers = {name: number for number, name in enumerate(names)}
        node = torch.tensor([numbers[name] for name in self.nodes], dtype=torch.int32)
        text = torch.frombuffer(bytearray("\n".join(names).encode()), dtype=torch.uint8)
        return save(
            {
                "class": self.classes,
                "confidence": self.confidence,
                "exit": self.exits,
                "flags": self.flags,
                "node": node,
                "names": text,
            }
        )

    @classmethod
    def joined(cls, first: Answers, second: Answers) -> Answers:
        """Return the answers of both."""
        return cls(
            torch.cat([first.classes, second.classes]),
            torch.cat([first.confidence, second.confidence]),
            torch.cat([first.exits, second.exits]),
            torch.cat([first.flags, second.flags]),
            first.nodes + second.nodes,
        )

    @classmethod
    def unpack(cls, body: bytes, count: int, classes: int | None = None) -> Answers:
        """Return the answers to `count` samples, checked against the number of `classes` if given.

        Raise `MalformedError` if the body holds no such answers.
        """
        tensors = unpack(body)
        kinds = {
            "class": torch.int32,
            "confidence": torch.float32,
            "exit": torch.uint8,
            "flags": torch.uint8,
            "node": torch.int32,
        }
        for name, dtype in kinds.items():
            found = tensors.get(name)
            if found is None or found.dtype != dtype or found.shape != (count,):
                raise MalformedError(f"these are no answers to {count} samples: see {name!r}")
        names = _names(tensors.get("names"), count)
        ranges = {
            "class": (0, 2**31 - 1 if classes is None else classes - 1),
            "confidence": (0, 1 + 1e-3),  # for rounding
            "exit": (1, 255),
            "flags": (0, DEGRADED | LIMITED),
            "node": (0, len(names) - 1),
        }
        for name, (least, most) in ranges.items():
            if not bool(((tensors[name] >= least) & (tensors[name] <= most)).all()):
                raise MalformedError(f"{name!r} of an answer is not within {least} to {most:g}")
        nodes = tuple(names[number] for number in tensors["node"].tolist())
        return cls(
            tensors["class"], tensors["confidence"], tensors["exit"], tensors["flags"], nodes
        )


def largest_answers(count: int) -> int:
    """Return the most bytes of the answers to `count` samples."""
    return HEADER + count * ANSWER


def pack(features: Features, half: bool = False) -> bytes:
    """Return the tensors of samples as a body; with `half`, floats as 16 bits where they fit."""
    tensors = {str(number): each.contiguous() for number, each in enumerate(features)}
    return save({name: _halved(each) for name, each in tensors.items()} if half else tensors)


def unpack(body: bytes) -> Mapping[str, Tensor]:
    """Return the tensors of a body by name."""
    try:
        return load(body)
    except Exception as error:  # Rust, Python or torch may raise it, for any bytes
        raise MalformedError(f"the body is no safetensors: {_first_line(error)}") from None


def read_samples(body: bytes, forms: Sequence[Form], longest: int, most: int) -> Features:
    """Return the samples of a body, up to `most`, in the forms that a node takes."""
    tensors = unpack(body)
    names = [str(number) for number in range(len(forms))]
    if set(tensors) != set(names):
        found = ", ".join(sorted(tensors)[:5]) or "none"
        raise UnfitError(f"the body has the tensors {found[:200]}: expected {', '.join(names)}")
    features = tuple(tensors[name] for name in names)
    count = len(features[0]) if features[0].ndim else 0
    if not 1 <= count <= most:
        raise UnfitError(f"the body has {count} samples: expected 1 to {most}")
    checked = zip(names, features, forms, strict=True)
    lengths = {length for each in checked for length in _lengths(*each, count)}
    if len(lengths) > 1 or not all(1 <= length <= longest for length in lengths):
        found = " and ".join(map(str, sorted(lengths)))
        raise UnfitError(f"texts of {found} tokens: expected one length, of 1 to {longest}")
    for tokens, form in zip(features, forms, strict=True):
        known = form.vocabulary
        if known is not None and not bool(((tokens >= 0) & (tokens < known)).all()):
            raise UnfitError(f"some tokens are unknown: expected 0 to {known - 1}")
    floats = [each.float() if each.is_floating_point() else each for each in features]
    if not all(bool(each.isfinite().all()) for each in floats if each.is_floating_point()):
        raise UnfitError("some values are not finite")
    return tuple(floats)


def _lengths(name: str, tensor: Tensor, form: Form, count: int) -> set[int]:
    """Return the lengths of a tensor's texts, if it has any; raise if the tensor does not fit."""
    expected, shape = (count, *form.shape), tuple(tensor.shape)
    sizes = list(zip(shape, expected, strict=False))
    kinds = {DTYPES[form.dtype], *([torch.float16] if form.dtype == "float32" else [])}
    if (
        tensor.dtype not in kinds
        or len(shape) != len(expected)
        or any(size != wanted for size, wanted in sizes if wanted is not None)
    ):
        wanted = ", ".join("tokens" if size is None else str(size) for size in form.shape)
        raise UnfitError(
            f"tensor {name} is {str(tensor.dtype).removeprefix('torch.')} {list(shape)[:8]}: "
            f"expected {form.dtype} [samples, {wanted}]"
        )
    return {size for size, wanted in sizes if wanted is None}


def _names(tensor: Tensor | None, count: int) -> list[str]:
    """Return the names of the answering nodes: at most one per sample."""
    if tensor is None or tensor.dtype != torch.uint8 or tensor.ndim != 1:
        raise MalformedError("these answers do not say who gave them")
    if len(tensor) > count * (LONGEST_NAME + 1):
        raise MalformedError(f"names of {len(tensor)} bytes for {count} answers")
    try:
        names = bytes(tensor.tolist()).decode().split("\n")
    except UnicodeDecodeError:
        raise MalformedError("these answers do not say who gave them") from None
    if len(names) > count:
        raise MalformedError(f"{len(names)} names for {count} answers")
    return names


def _halved(tensor: Tensor) -> Tensor:
    if tensor.dtype != torch.float32:
        return tensor
    half = tensor.half()
    return half if bool(half.isfinite().all()) else tensor


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
