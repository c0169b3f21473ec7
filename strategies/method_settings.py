"""The settings that methods have in common; each method's own are in its file.

`conf/strategy/NAME.yaml` sets these fields and no others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Self

from data.ranges import Range
from data.spec import DatasetSpec
from models import Task, family
from models.slicing import Rounding
from strategies.federation import Federation, ModelConfig, check_least, rises_to_one
from strategies.levels.cost import CostKind
from strategies.levels.planning import (
    Level,
    Split,
    levels_of,
    own_exit_only,
    search_depths,
    search_splits,
)


@dataclass(frozen=True, kw_only=True)
class MethodSettings:
    """What every method has: its name, what it counts costs in, what it asks of networks."""

    name: str
    cost: CostKind = "parameters"
    """What a level's cost, and a client's budget, is counted in."""
    tolerance: float = 0.1
    """By how much a level's cost may miss its target, or a client's budget."""
    norm: str | None = None
    scaler: str | None = None
    """What the method asks of networks that have the choice; `model.norm` and `model.scaler` win,
    and null leaves it to the network."""

    def __post_init__(self) -> None:
        check_least(self, 0, "tolerance")

    def check(self, federation: Federation) -> None:
        """Raise `ValueError` if a federation cannot be run with these settings."""

    def check_files(self, federation: Federation) -> None:
        """Raise `ValueError` if files that the server needs besides the run's data are no good."""

    def complete(self, model: ModelConfig) -> ModelConfig:
        """Return the model with the options that are asked for, where it leaves them open.

        A run of a model that has no such choice says so when it starts.
        """
        known = family(model.name).options
        taken = {k: v for k, v in self.asked.items() if v is not None and k in known}
        return replace(model, options={**taken, **model.options})

    def complete_data(self, data: DatasetSpec) -> DatasetSpec:
        """Return the data set with what the server is to keep of it, where that is left open."""
        return data

    def for_clients(self) -> Self:
        """Return the settings that clients are sent: without those of the server's own work."""
        return self

    @property
    def asked(self) -> dict[str, str | None]:
        """What the method asks of networks, by the names of their options; None asks nothing."""
        return {"norm": self.norm, "scaler": self.scaler}

    @property
    def need_clients(self) -> bool:
        """Whether the levels follow from what the clients afford."""
        return False

    @property
    def remembers(self) -> bool:
        """Whether clients keep something from one of their rounds to the next: their `memory`."""
        return False

    @property
    def ensemble(self) -> bool:
        """Whether a network answers with the mean of its exits' logits, not with its last exit."""
        return False


@dataclass(frozen=True, kw_only=True)
class PlannedSettings(MethodSettings):
    """How a method's levels are made: of widths, of splits, or of Eq. (1) of ScaleFL for ratios.

    Where nothing is given they follow from what the clients' devices afford.
    """

    widths: tuple[float, ...] | None = None
    """Share of the channels that each level keeps, the smallest first."""
    splits: tuple[tuple[float, ...], ...] | None = None
    """Each level's units and share of the channels, the smallest first."""
    ratios: tuple[float, ...] | None = None
    """What each level may cost, as a share of the full model, the smallest first."""
    levels: Annotated[int | None, Range(1, 100)] = None
    """Into how many levels clients are sorted by what they afford; null finds a number."""
    rounding: Rounding = "floor"
    ways: ClassVar[tuple[str, ...]] = ("widths", "ratios", "splits")
    """The settings of which one makes the levels."""

    def __post_init__(self) -> None:
        super().__post_init__()
        given = self._given()
        if len(given) > 1:
            raise ValueError(
                f"{' and '.join(given)} are given: expected one of {', '.join(self.ways)}; set the "
                "others to null"
            )
        for name in ("widths", "ratios"):
            shares = getattr(self, name)
            if shares is not None and not rises_to_one(shares):
                raise ValueError(
                    f"{name} are {list(shares)}: expected to rise from above 0 to 1, the full model"
                )
        self._check_splits()
        if self.levels is not None and given:
            raise ValueError(f"levels are {self.levels}: expected null beside {given[0]}")
        if self.levels is not None:
            check_least(self, 1, "levels")

    def check(self, federation: Federation) -> None:
        """Raise `ValueError` unless the last split is the full model."""
        whole = (federation.task.units, 1.0)
        last = self.splits[-1] if self.splits else whole
        if last != whole:
            raise ValueError(
                f"the last split is {list(last)}: expected {list(whole)}, the full model"
            )

    @property
    def need_clients(self) -> bool:
        """Whether the levels follow from what the clients afford."""
        return not self._given()

    def plan(self, task: Task, ratios: tuple[float, ...], early_exits: bool) -> list[Level]:
        """Return the levels; `ratios` stand in where no widths or splits are given.

        With `early_exits` a level also holds the exits of the levels below it.
        """
        if self.widths:
            splits = [Split(task.units, width) for width in self.widths]
        elif self.splits:
            splits = [Split(int(depth), width) for depth, width in self.splits]
        else:
            splits = self.search(task, ratios)
        levels = levels_of(task, splits, self.rounding)
        return levels if early_exits else [own_exit_only(task, each) for each in levels]

    def search(self, task: Task, ratios: tuple[float, ...]) -> list[Split]:
        """Return the splits that cost these ratios: by Eq. (1) of ScaleFL."""
        return search_splits(task, ratios, self.tolerance, self.cost, rounding=self.rounding)

    def _given(self) -> list[str]:
        return [name for name in self.ways if getattr(self, name)]

    def _check_splits(self) -> None:
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


@dataclass(frozen=True, kw_only=True)
class DepthSettings(PlannedSettings):
    """Of methods whose levels differ in depth alone: networks of full width up to an exit."""

    head: str | None = None
    """What early exits are to be made of; `model.head` wins, and null leaves it to the network."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.widths:
            raise ValueError(
                f"widths are {list(self.widths)}: expected null, since the levels of {self.name} "
                "differ in depth alone; give ratios, or splits of width 1"
            )
        for split in self.splits or ():
            if split[1] != 1:
                raise ValueError(
                    f"splits: {list(split)}: expected width 1, since the levels of {self.name} "
                    "differ in depth alone"
                )

    @property
    def asked(self) -> dict[str, str | None]:
        """What is asked of networks: heads, too."""
        return {**super().asked, "head": self.head}

    def search(self, task: Task, ratios: tuple[float, ...]) -> list[Split]:
        """Return the deepest splits that cost these ratios, at full width."""
        return search_depths(task, ratios, self.tolerance, self.cost)
