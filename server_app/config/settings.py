"""What a run is made of, resolved and checked: conf/ as frozen dataclasses."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal

from data.spec import DatasetSpec
from models.slicing import Rounding
from protocol.settings import StatisticsKind, TrainSettings
from strategies.aggregation.bounds import UpdateBounds
from strategies.levels.cost import CostKind

WindowKind = Literal["prefix", "upper-right", "lower-left", "lower-right", "middle", "random"]
"""Those of `models.slicing` that stay where they are from round to round."""
Weighting = Literal["uniform", "examples"]
MissingLevels = Literal["stop", "warn"]
Engine = Literal["ray", "local"]


@dataclass(frozen=True)
class ModelConfig:
    """A registered network, and the options that its family takes."""

    name: str
    weights: str | None = None
    """Pre-trained weights to start from: a file, a folder, `hub:NAME` or `package:NAME`."""
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        chosen = {key: value for key, value in self.options.items() if value is not None}
        object.__setattr__(self, "options", chosen)

    def check(self, data: DatasetSpec) -> None:
        """Raise `ValueError` if there is no such network, by building it without memory."""
        from models import Slice, Task, family

        found = family(self.name)
        if found.reads != data.holds:
            raise ValueError(
                f"{self.name} reads {found.reads}, but the data set {data.name} holds {data.holds}"
            )
        everything = Slice(exits=tuple(range(1, found.units + 1)))
        options = tuple(self.options.items())
        task = Task(self.name, data.facts.num_classes, options=options, **data.input_shape)
        task.build(everything, device="meta")


@dataclass(frozen=True)
class StrategyConfig:
    """A method, and the levels it trains."""

    name: str
    widths: tuple[float, ...] | None = None
    """Share of the channels that each level keeps, the smallest first."""
    ratios: tuple[float, ...] | None = None
    """What each level may cost, as a share of the full model, the smallest first."""
    splits: tuple[tuple[float, ...], ...] | None = None
    """Each level's units and share of the channels, the smallest first."""
    cost: CostKind = "parameters"
    tolerance: float = 0.1
    rounding: Rounding = "floor"
    levels: int | None = None
    """Into how many levels clients are sorted by what they afford, where ratios are null."""
    window: WindowKind = "prefix"
    """Which channels a slice keeps (ScaleFL)."""
    objective: str = "cross-entropy"
    objective_settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        given = [name for name in ("widths", "ratios", "splits") if getattr(self, name)]
        if len(given) > 1:
            raise ValueError(
                f"expected one of widths, ratios and splits, got {' and '.join(given)}"
            )
        for split in self.splits or ():
            if len(split) != 2 or split[0] != int(split[0]):
                raise ValueError(f"splits: {list(split)} is no pair of units and width")
            if split[0] < 1 or not 0 < split[1] <= 1:
                raise ValueError(
                    f"splits: {list(split)}: expected at least 1 unit, and a width above 0, to 1"
                )
        depths = [split[0] for split in self.splits or ()]
        if depths != sorted(depths):
            raise ValueError(f"splits have depths {depths}: expected to rise to the full model")
        for name in ("widths", "ratios"):
            shares = getattr(self, name)
            if shares is not None and not _rises_to_one(shares):
                raise ValueError(
                    f"{name} are {list(shares)}: expected to rise from above 0 to 1, the full model"
                )
        if self.levels is not None and given:
            raise ValueError(f"levels are {self.levels}: expected null beside {given[0]}")
        if self.levels is not None:
            _check_least(self, 1, "levels")
        _check_least(self, 0, "tolerance")
        from training.losses import check_settings

        check_settings(self.objective, self.objective_settings)


@dataclass(frozen=True)
class Tier:
    """Clients of one kind."""

    budget: float
    """What they can hold, as a share of the full model's cost."""
    clients: int


@dataclass(frozen=True)
class FleetConfig:
    """The clients, and what each can hold."""

    clients: int
    budgets: tuple[float, ...]
    shares: tuple[float, ...]

    def __post_init__(self) -> None:
        _check_least(self, 1, "clients")
        if not _rises_to_one((*self.budgets, 1.0)):
            raise ValueError(
                f"budgets are {list(self.budgets)}: expected to rise from above 0 to 1"
            )
        if len(self.shares) != len(self.budgets):
            raise ValueError(f"{len(self.shares)} shares, but {len(self.budgets)} budgets")
        if min(self.shares) < 0 or sum(self.shares) == 0:
            raise ValueError(f"shares are {list(self.shares)}: expected 0 or more, not all 0")

    @property
    def tiers(self) -> tuple[Tier, ...]:
        """The clients divided by the shares, to within one client; few go where they do most."""
        total = sum(self.shares)
        ends = [round(self.clients * end / total) for end in accumulate(self.shares)]
        counts = [end - start for start, end in zip([0, *ends], ends, strict=False)]
        wanted = [tier for tier, share in enumerate(self.shares) if share > 0]
        if self.clients < len(wanted):
            # One each: the largest tier, the smallest, then those between, the smaller first.
            served = [wanted[-1], *wanted[:-1]][: self.clients]
            counts = [int(tier in served) for tier in range(len(self.shares))]
        return tuple(Tier(b, n) for b, n in zip(self.budgets, counts, strict=True))

    def tier_of(self, client: int) -> int:
        """The tier of a client, counted from 0: the first clients are the smallest."""
        ends = accumulate(tier.clients for tier in self.tiers)
        return next(tier for tier, end in enumerate(ends) if client < end)


@dataclass(frozen=True)
class EvaluateConfig:
    """Rounds between evaluations on the server, and on the clients; 0 is after the last alone."""

    every: int
    clients_every: int
    statistics: StatisticsKind = "own"
    """What clients' tests normalise by, where the network keeps no statistics."""

    def __post_init__(self) -> None:
        _check_least(self, 0, "every", "clients_every")


@dataclass(frozen=True)
class CheckpointConfig:
    """Rounds between checkpoints, and how many are kept."""

    every: int
    keep: int

    def __post_init__(self) -> None:
        _check_least(self, 1, "every", "keep")


@dataclass(frozen=True)
class Config:
    """All that a run depends on."""

    model: ModelConfig
    dataset: DatasetSpec
    strategy: StrategyConfig
    fleet: FleetConfig
    train: TrainSettings
    evaluate: EvaluateConfig
    checkpoint: CheckpointConfig
    seed: int
    rounds: int
    clients_per_round: int
    window: int
    deadline: float
    min_replies: float | None
    weighting: Weighting
    output: str
    name: str | None
    resume: str | None
    max_examples: int = 10**8
    """That a client may say it has; a run saved before this was a setting lacks it."""
    max_update: UpdateBounds = field(default_factory=UpdateBounds)
    missing_levels: MissingLevels = "stop"
    engine: Engine = "ray"
    """What `nestfl run` runs the app on: the weights are the same."""

    def __post_init__(self) -> None:
        _check_least(self, 1, "rounds", "clients_per_round", "window")
        _check_least(self, 0, "seed", "deadline")
        if not 1 <= self.max_examples <= 2**30:
            raise ValueError(f"max_examples is {self.max_examples}: expected 1 to 2^30")
        if self.min_replies is not None and not 0 < self.min_replies <= 1:
            raise ValueError(f"min_replies is {self.min_replies}: expected above 0, to 1")
        if self.clients_per_round > self.fleet.clients:
            raise ValueError(
                f"clients_per_round is {self.clients_per_round}, "
                f"but the fleet has {self.fleet.clients} clients"
            )
        if self.dataset.clients != self.fleet.clients:
            raise ValueError(
                f"dataset.clients is {self.dataset.clients}, "
                f"but the fleet has {self.fleet.clients} clients"
            )
        if self.name is not None and not re.fullmatch(r"\w[\w.-]*", self.name):
            raise ValueError(f"name is {self.name!r}: expected letters, digits, '-', '_' and '.'")
        try:
            self.model.check(self.dataset)
        except ValueError as error:
            raise ValueError(f"model: {error}") from error
        self._check_splits()
        self._check_window()

    @property
    def label(self) -> str:
        """What was chosen, in short."""
        return f"{self.strategy.name}-{self.model.name}-{self.dataset.name}"

    def _check_splits(self) -> None:
        from models import family

        whole = (family(self.model.name).units, 1.0)
        last = self.strategy.splits[-1] if self.strategy.splits else whole
        if last != whole:
            raise ValueError(
                f"strategy: the last split is {list(last)}: expected {list(whole)}, the full model"
            )

    def _check_window(self) -> None:
        """A level's statistics are of the same channels at all clients; padding is of the first."""
        window, options = self.strategy.window, self.model.options
        norm, shortcut = options.get("norm"), options.get("shortcut")
        if window == "random" and norm in ("bn-running", "bn-static"):
            raise ValueError(
                f"strategy.window is random, but model.norm {norm} keeps one set of statistics for "
                "all clients of a level, who then have other channels each: choose another window, "
                "or norm bn or gn"
            )
        if window != "prefix" and shortcut == "A":
            raise ValueError(
                f"strategy.window is {window}, but model.shortcut A pads where the first channels "
                "belong: choose window prefix, or shortcut B"
            )


def _rises_to_one(shares: tuple[float, ...]) -> bool:
    return bool(shares) and list(shares) == sorted(shares) and shares[0] > 0 and shares[-1] == 1


def _check_least(settings: object, least: int, *names: str) -> None:
    for name in names:
        if getattr(settings, name) < least:
            expected = f"at least {least}" if least else "0 or more"
            raise ValueError(f"{name} is {getattr(settings, name)}: expected {expected}")
