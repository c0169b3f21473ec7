"""Registers networks by name, builds them, and defines the steps that each network has."""

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
"""Yields the logits of one exit after the other; accepts a mask of the samples that go on."""

Features = tuple[Tensor, ...]
"""Tensors of a batch after a unit, sample by sample; heads read the last tensor."""


def going_on(x: Tensor, kept: Tensor | None) -> Tensor:
    """Return the samples of a batch that continue in a walk."""
    return x if kept is None else x[kept]


def held(modules: nn.ModuleDict, name: int | str) -> nn.Module | None:
    """Return the module with this name or number, or None where the slice lacks it."""
    return modules[str(name)] if str(name) in modules else None  # noqa: SIM401  (it has no `get`)


def early_heads(slice: Slice, units: int, head: Callable[[int], nn.Module]) -> nn.ModuleDict:
    """Return a slice's early exits, with one head for each unit under its number."""
    return nn.ModuleDict({str(unit): head(unit) for unit in slice.early_exits(units)})


class SlicedNetwork(nn.Module):
    """A network of any family: it returns the logits of each exit, in order.

    It enters, runs through its units, and has a head at each exit; a family defines these steps. A
    network that overrides `walk` instead works as well, but cannot be run in parts.
    """

    exits: nn.ModuleDict
    """The heads of the early exits, by the number of the unit they follow."""
    saved_within: ClassVar[tuple[str, ...]] = ()
    """Prefixes of its tensors' names in pre-trained weights of a network that contained it."""
    saved_besides: ClassVar[tuple[str, ...]] = ()
    """Prefixes of names in pre-trained weights that it does not use: other tasks' heads."""
    drawn_anew: ClassVar[tuple[str, ...]] = ()
    """Prefixes of its own names that pre-trained weights may lack: those of its final head."""
    depth: int
    """Number of units that it runs through; the last one has an exit."""

    def forward(self, x: Tensor) -> list[Tensor]:
        return list(self.walk(x))

    def walk(self, x: Tensor) -> Walk:
        """Yield each exit's logits as they are reached, and compute nothing beyond.

        The caller may send back a mask of the samples that continue; the others leave the batch.
        """
        features = self.enter(x)
        for number in range(1, self.depth + 1):
            features = self.run_unit(number, features)
            if self.has_exit(number):
                kept = yield self.run_head(number, features)
                features = tuple(going_on(each, kept) for each in features)

    def enter(self, x: Tensor) -> Features:
        """Return the input of the first unit: the network's input, unless a layer comes before."""
        return (x,)

    def unit(self, number: int) -> nn.Module | None:
        """Return the module of a unit, counted from 1; None where the slice skips it."""
        raise NotImplementedError

    def run_unit(self, number: int, features: Features) -> Features:
        """Return the features after a unit.

        The unit computes a new last feature. It reads the last one first, then the others, which
        stay unchanged, such as an attention mask.
        """
        unit, (*others, x) = self.unit(number), features
        return features if unit is None else (*others, unit(x, *others))

    def has_exit(self, number: int) -> bool:
        """Return whether there is an exit after a unit."""
        return number == self.depth or str(number) in self.exits

    def run_head(self, number: int, features: Features) -> Tensor:
        """Return the logits of the exit after a unit."""
        if str(number) in self.exits:
            logits: Tensor = self.exits[str(number)](features[-1])
            return logits
        return self.final_head(features[-1])

    def final_head(self, x: Tensor) -> Tensor:
        """Return the logits of the full network's own exit."""
        raise NotImplementedError


Constructor = Callable[..., SlicedNetwork]
InputKind = Literal["images", "series", "tokens", "language"]
"""Kind of input: pixels [batch, channels, height, width], numbers [batch, channels, length], or
token ids [batch, tokens].

A language model answers for every token, from the tokens up to it: its classes are its tokens, and
its logits are [batch x tokens, classes].
"""


@dataclass(frozen=True)
class Family:
    """A registered network: its constructor, its depth, and its input."""

    construct: Constructor
    units: int
    """Blocks or layers that count as depth; exit number `units` is the final head."""
    own_exits: tuple[int, ...] = ()
    """Early exits of the published network, which its cost includes."""
    reads: InputKind = "images"
    stages: tuple[int, ...] = ()
    """Residual blocks of each stage, any of which a slice may lack; empty where all are needed."""
    keeps_first: bool = False
    """True if every slice needs the first block of each stage."""
    blocks: str = "layer{stage}.{block}."
    """Prefix of a block's tensor names: stages are counted from 1, blocks from 0."""
    candidates: Candidates | None = None
    """Choices that a paper gives its clients (FedFA, Table 5)."""

    @property
    def has_channels(self) -> bool:
        """True if its input has channels: images and series."""
        return self.reads in ("images", "series")

    @property
    def options(self) -> list[str]:
        """Parameters of the constructor besides classes, channels and slice."""
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
    """Register a constructor under a name.

    It takes the number of classes, the number of channels if it reads images or series, and the
    slice.
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
    """Return the family with this name, or raise `ValueError` with the choices."""
    # A plugin is loaded only when its name is asked for.
    plugins.search(lambda: name in _FAMILIES)
    if name not in _FAMILIES:
        raise ValueError(f"unknown model {name!r}; choose from {', '.join(names())}")
    return _FAMILIES[name]


def names() -> list[str]:
    """Return the names of all registered networks."""
    return sorted(_FAMILIES)


def build(
    name: str,
    num_classes: int,
    in_channels: int = 3,
    slice: Slice = Slice(),  # noqa: B008  (frozen)
    device: torch.device | str = "cpu",
    **options: Any,
) -> SlicedNetwork:
    """Build a network, or a slice of it. `options` are the family's own."""
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
