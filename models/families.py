"""Networks by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

import plugins
from models.candidates import Candidates
from models.nested_widths import give_statistics
from models.slicing import Slice, SliceError

Walk = Generator[Tensor, Tensor | None, None]
"""The logits of one exit after the other; what is sent back says which samples go on."""

Features = tuple[Tensor, ...]
"""What is known of a batch behind a unit, sample by sample; heads read the last of them."""


def going_on(x: Tensor, kept: Tensor | None) -> Tensor:
    """Return the samples of a batch that a walk goes on with."""
    return x if kept is None else x[kept]


def held(modules: nn.ModuleDict, name: int | str) -> nn.Module | None:
    """Return the module of a name or number; None where the slice lacks it."""
    return modules[str(name)] if str(name) in modules else None  # noqa: SIM401  (it has no `get`)


def early_heads(slice: Slice, units: int, head: Callable[[int], nn.Module]) -> nn.ModuleDict:
    """Return a slice's early exits: the head that is made for each unit, under its number."""
    return nn.ModuleDict({str(unit): head(unit) for unit in slice.early_exits(units)})


class SlicedNetwork(nn.Module):
    """A network of any family: it returns the logits of each exit held, in order.

    It enters, runs through its units, and has a head at each exit: a family says what these are.
    One that says `walk` instead is a network too, but cannot be run in parts.
    """

    exits: nn.ModuleDict
    """The early exits' heads, each under the number of the unit that it follows."""
    saved_within: ClassVar[tuple[str, ...]] = ()
    """Beginnings of its tensors' names in pre-trained weights where it was part of another."""
    saved_besides: ClassVar[tuple[str, ...]] = ()
    """Beginnings of names in pre-trained weights that it has no place for: other tasks' heads."""
    drawn_anew: ClassVar[tuple[str, ...]] = ()
    """Beginnings of names of its own that pre-trained weights may lack: of its final head."""
    depth: int
    """How many units it runs through; there is an exit behind the last of them."""

    def forward(self, x: Tensor) -> list[Tensor]:
        return list(self.walk(x))

    def walk(self, x: Tensor) -> Walk:
        """Yield each exit's logits as they are reached, and compute nothing beyond.

        Who walks may send back which samples of the batch go on, as a mask; the others are gone.
        """
        features = self.enter(x)
        for number in range(1, self.depth + 1):
            features = self.run_unit(number, features)
            if self.has_exit(number):
                kept = yield self.run_head(number, features)
                features = tuple(going_on(each, kept) for each in features)

    def enter(self, x: Tensor) -> Features:
        """Return what the first unit reads of an input: the input, if nothing comes before it."""
        return (x,)

    def unit(self, number: int) -> nn.Module | None:
        """Return the module of a unit, counted from 1; None where the slice skips it."""
        raise NotImplementedError

    def run_unit(self, number: int, features: Features) -> Features:
        """Return the features behind a unit, of those before it.

        It gives the last anew. It reads this one first, and the others as they are: what to attend
        to, for instance.
        """
        unit, (*others, x) = self.unit(number), features
        return features if unit is None else (*others, unit(x, *others))

    def has_exit(self, number: int) -> bool:
        """Return whether there is an exit behind a unit."""
        return number == self.depth or str(number) in self.exits

    def run_head(self, number: int, features: Features) -> Tensor:
        """Return the logits of the exit behind a unit."""
        if str(number) in self.exits:
            logits: Tensor = self.exits[str(number)](features[-1])
            return logits
        return self.final_head(features[-1])

    def final_head(self, x: Tensor) -> Tensor:
        """Return the logits of the full network's own exit."""
        raise NotImplementedError


Constructor = Callable[..., SlicedNetwork]
InputKind = Literal["images", "series", "tokens", "language"]
"""The kind of input: pixels [batch, channels, height, width], numbers [batch, channels, length], or
token ids [batch, tokens].

A network that reads language answers for every token, from those up to it: its classes are its
tokens, too, and its logits are [batch x tokens, classes].
"""


@dataclass(frozen=True)
class Family:
    """A registered network: how to build it, how deep it is, and what it reads."""

    construct: Constructor
    units: int
    """Blocks or layers that depth is counted in; exit number `units` is the final head."""
    own_exits: tuple[int, ...] = ()
    """Early exits that are part of the network as it was published, and of what it costs."""
    reads: InputKind = "images"
    stages: tuple[int, ...] = ()
    """Residual blocks of each stage, any of which a slice may lack; none where all are needed."""
    keeps_first: bool = False
    """Whether the first block of each stage is one that no slice may lack."""
    blocks: str = "layer{stage}.{block}."
    """What the names of a block's tensors begin with: stages are counted from 1, blocks from 0."""
    candidates: Candidates | None = None
    """What a paper lets clients choose from (FedFA, Table 5)."""

    @property
    def has_channels(self) -> bool:
        """Return whether what it reads has channels, and is no text."""
        return self.reads in ("images", "series")

    @property
    def options(self) -> list[str]:
        """Return what the constructor takes besides classes, channels and slice."""
        shared = {"num_classes", "in_channels", "slice"}
        return sorted(inspect.signature(self.construct).parameters.keys() - shared)


_FAMILIES: dict[str, Family] = {}


def register(
    name: str,
    units: int,
    own_exits: tuple[int, ...] = (),
    reads: InputKind = "images",
    stages: tuple[int, ...] = (),
    keeps_first: bool = False,
    blocks: str = Family.blocks,
    candidates: Candidates | None = None,
) -> Callable[[Constructor], Constructor]:
    """Offer a constructor under a name.

    It takes the number of classes, of channels if it reads images or series, and the slice.
    """

    def add(construct: Constructor) -> Constructor:
        if name in _FAMILIES:
            raise ValueError(f"a model named {name!r} is there already: choose another name")
        _FAMILIES[name] = Family(
            construct, units, own_exits, reads, stages, keeps_first, blocks, candidates
        )
        plugins.offer("model", name, lambda: _FAMILIES.pop(name))
        return construct

    return add


def family(name: str) -> Family:
    """Return the family of a name, a plugin's too, or raise `ValueError` with the choices."""
    plugins.search(lambda: name in _FAMILIES)
    if name not in _FAMILIES:
        raise ValueError(f"unknown model {name!r}; choose from {', '.join(names())}")
    return _FAMILIES[name]


def names() -> list[str]:
    """Return the names of all networks that are registered."""
    return sorted(_FAMILIES)


def build(
    name: str,
    num_classes: int,
    in_channels: int = 3,
    slice: Slice = Slice(),  # noqa: B008  (frozen)
    device: torch.device | str = "cpu",
    **options: Any,
) -> SlicedNetwork:
    """Build a network, or the slice of it that a device holds. `options` are the family's own."""
    found = family(name)
    if slice.exits and not 1 <= slice.exits[0] <= slice.exits[-1] <= found.units:
        raise SliceError(f"{name} has units 1 to {found.units}; exits {slice.exits} are not there")
    unknown = sorted(options.keys() - set(found.options))
    if unknown:
        choices = ", ".join(found.options) or "none"
        raise ValueError(f"unknown option {unknown[0]!r} of {name}; choose from {choices}")
    shape = (num_classes, in_channels) if found.has_channels else (num_classes,)
    with torch.device(device):
        net = found.construct(*shape, slice, **options)
        give_statistics(net, slice, lambda narrow: found.construct(*shape, narrow, **options))
        return net
