"""A node's part of a trained network, as a folder: all that the node needs, without training data.

`part.safetensors` has the tensors that the node reads, `part.json` describes them, and `plugins`
has the network's code if it is a user's own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

import plugins
from data.examples import mean_and_scale, scale_and_shift
from data.ranges import SIZE
from inference.rate_thresholds import check_threshold
from models.families import Features, family
from models.parts import Part, load_part
from models.slicing import Slice, State
from models.task import Task
from plugins.regular_files import require_regular
from protocol.documents import DocumentError, conforming, read_json

FACTS_FILE, TENSORS_FILE = "part.json", "part.safetensors"
FORMAT = 1
"""Version of the folder's format; raise it when the format changes."""
MOST_BYTES = 2**28
"""Of the features of one sample."""

DTYPES = {
    "uint8": torch.uint8,
    "int32": torch.int32,
    "bool": torch.bool,
    "float32": torch.float32,
}


class PartError(ValueError):
    """A folder without a valid part of a network; the text is one sentence."""


@dataclass(frozen=True)
class Form:
    """The type and the shape of a tensor, for one sample."""

    dtype: str
    shape: tuple[int | None, ...]
    """None stands for the length of a text."""
    vocabulary: int | None = None
    """Number of known tokens, if the tensor holds tokens."""

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise PartError(f"tensors of {self.dtype!r}: expected one of {', '.join(DTYPES)}")

    @classmethod
    def of(cls, tensor: Tensor, other: Tensor) -> Form:
        """Return the form of a batch's tensor; `other` is that of texts of another length."""
        sizes = zip(tensor.shape[1:], other.shape[1:], strict=True)
        shape = tuple(size if size == elsewhere else None for size, elsewhere in sizes)
        return cls(str(tensor.dtype).removeprefix("torch."), shape)

    def bytes(self, longest: int) -> int:
        """Return the most bytes of a sample, for texts of up to `longest` tokens."""
        sizes = (longest if size is None else size for size in self.shape)
        return math.prod(sizes) * DTYPES[self.dtype].itemsize


@dataclass(frozen=True)
class NodePart:
    """Facts about a node, and about its part of the network."""

    name: str
    run: str
    """The run that trained the network, and the round it was taken from."""
    task: Task
    slice: Slice
    first: int
    """The unit after which it continues; 0 reads inputs."""
    last: int
    """The unit that its exit follows."""
    exit: int
    """Number of its exit, counted from 1."""
    ensemble: bool
    """Answer with the mean of the exits up to its own."""
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    """Mean of each channel of images or series, for their normalisation; empty for texts."""
    std: tuple[float, ...]
    takes: Mapping[int, tuple[Form, ...]]
    """Forms of its inputs, by the unit after which they continue: 0 for inputs themselves."""
    sends: tuple[bool, ...]
    """For each of its features, whether the next node reads it; others are sent empty."""
    threshold: float
    """Confidence from which the node answers a sample, instead of passing it on."""
    max_transfer: float | None
    """Most samples per second that it passes on; None: all."""
    parents: Mapping[str, float]
    """Nodes to which it passes samples on, with the share of each."""

    def check(self) -> None:
        """Raise `ValueError` for numbers that no node has."""
        check_threshold(self.threshold)
        for name in ("num_classes", "in_channels", "image_size", "tokens", "length"):
            SIZE.check(f"task.{name}", getattr(self.task, name))
        for unit, forms in self.takes.items():
            for form in forms:
                if min((size for size in form.shape if size is not None), default=0) < 0:
                    raise ValueError(f"takes.{unit}: shape is {form.shape}: expected sizes")
                if form.bytes(self.longest) > MOST_BYTES:
                    raise ValueError(
                        f"takes.{unit}: a sample of shape {form.shape} has more than "
                        f"{MOST_BYTES} bytes"
                    )

    @property
    def longest(self) -> int:
        """Most tokens of a text."""
        return self.task.tokens

    def prepared(self, inputs: Tensor) -> Tensor:
        """Return the network's input for a batch: normalised images or series, or tokens."""
        if not self.mean:
            return inputs.long()
        if family(self.task.model).reads == "series":
            mean, factor = mean_and_scale(self.mean, self.std)
            return (inputs - mean).mul_(factor)
        scale, shift = scale_and_shift(self.mean, self.std)
        return torch.mul(inputs, scale).add_(shift)


def write_part(folder: Path, facts: NodePart, tensors: State) -> None:
    """Write a node's folder: the tensors first, then their description."""
    folder.mkdir(parents=True)
    plugins.write(folder)
    whole = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    save_file(whole, folder / TENSORS_FILE)
    fields = {"format": FORMAT, **asdict(facts)}
    (folder / FACTS_FILE).write_text(json.dumps(fields, indent=2) + "\n")


def is_part(folder: Path) -> bool:
    """Return whether a folder has a node's part."""
    return (folder / FACTS_FILE).is_file()


def read_facts(folder: Path) -> NodePart:
    """Return the facts about a node, without its tensors."""
    file = folder / FACTS_FILE
    if not file.is_file():
        raise PartError(f"{folder} is no part of a network: expected {FACTS_FILE} in it")
    try:
        given = read_json(file, dict)
        version = given.pop("format", None)
        if version != FORMAT:
            raise PartError(f"{file} has format {version}: expected {FORMAT}; split the run anew")
        fields = _tuples(conforming(given, NodePart, file))
    except (OSError, DocumentError) as error:
        raise PartError(f"{error}") from None
    try:
        takes = {
            int(unit): tuple(Form(**form) for form in forms)
            for unit, forms in fields["takes"].items()
        }
        made = {"task": Task(**fields["task"]), "slice": Slice(**fields["slice"]), "takes": takes}
        facts = NodePart(**fields | made)
        facts.check()
    except ValueError as error:
        raise PartError(f"{file} does not say what its tensors are of: {error}") from None
    return facts


def read_part(folder: Path) -> tuple[NodePart, Part]:
    """Return the facts about a node, and its part of the network after a test run."""
    plugins.load_kept(folder)
    facts = read_facts(folder)
    file = folder / TENSORS_FILE
    try:
        require_regular(file)
        tensors = load_file(file)
    except (OSError, SafetensorError) as error:
        raise PartError(f"{file} cannot be read: {error}") from None
    try:
        part = load_part(facts.task, facts.slice, facts.first, facts.last, facts.ensemble, tensors)
        for start, forms in facts.takes.items():
            answer(facts, part, example(forms, facts.longest), start)
    except Exception as error:  # for whatever may be in the two files
        found = " ".join(str(error).split())[:200] or type(error).__name__
        raise PartError(f"{file} has not the tensors that {FACTS_FILE} says: {found}") from None
    return facts, part


def example(forms: tuple[Form, ...], longest: int) -> Features:
    """Return a batch of one sample in these forms, with arbitrary values."""
    shapes = ([1, *(longest if n is None else n for n in form.shape)] for form in forms)
    typed = zip(forms, shapes, strict=True)
    return tuple(torch.ones(shape, dtype=DTYPES[form.dtype]) for form, shape in typed)


@torch.inference_mode()
def answer(facts: NodePart, part: Part, given: Features, start: int) -> tuple[Tensor, Features]:
    """Return the logits of features from behind unit `start`, and the features to pass on."""
    if start == 0:
        given = (facts.prepared(given[0]),)
    logits, features = part(given, start)
    sent = zip(facts.sends, features, strict=True)
    return logits.float(), tuple(each if read else each[:, :0] for read, each in sent)


def _tuples(value: Any) -> Any:
    """Return a JSON value with its lists turned into tuples."""
    if isinstance(value, dict):
        return {key: _tuples(each) for key, each in value.items()}
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
