"""The settings that methods share; each method's own settings are in its file.

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
    """Settings of every method: its name, its unit of cost, and its choice of norm and scaler."""

    name: str
    cost: CostKind = "parameters"
    """Unit of a level's cost and of a client's budget."""
    tolerance: float = 0.1
    """Largest relative deviation of a level's cost from its target, or above a client's budget."""
    norm: str | None = None
    scaler: str | None = None
    """Norm and scaler that the method asks of a network with such options. `model.norm` and
    `model.scaler` win; default (None): the network's own."""

    def __post_init__(self) -> None:
        check_least(self, 0, "tolerance")

    def check(self, federation: Federation) -> None:
        """Raise `ValueError` if these settings do not fit the federation."""

    def check_files(self, federation: Federation) -> None:
        """Raise `ValueError` for bad files that the server needs besides the run's data."""

    def complete(self, model: ModelConfig) -> ModelConfig:
        """Return the model with the method's options filled in where the model leaves them open.

        An option that the model does not have is skipped; the run logs it at the start.
        """
        known = family(model.name).options
        taken = {k: v for k, v in self.asked.items() if v is not None and k in known}
        return replace(model, options={**taken, **model.options})

    def complete_data(self, data: DatasetSpec) -> DatasetSpec:
        """Return the data set with the server's share of it filled in where it is left open."""
        return data

    def for_clients(self) -> Self:
        """Return the settings that clients are sent: without the server's own."""
        return self

    @property
    def asked(self) -> dict[str, str | None]:
        """Options that the method asks of networks, by name; None asks nothing."""
        return {"norm": self.norm, "scaler": self.scaler}

    @property
    def need_clients(self) -> bool:
        """True if the levels follow from the clients' budgets."""
        return False

    @property
    def remembers(self) -> bool:
        """True if clients keep a `memory` from one of their rounds to the next."""
        return False

    @property
    def ensemble(self) -> bool:
        """True if a network answers with the mean of its exits' logits instead of its last exit."""
        return False


@dataclass(frozen=True, kw_only=True)
class PlannedSettings(MethodSettings):
    """Levels from widths, from splits, or from cost ratios by Eq. (1) of ScaleFL.

    Without any of these, the levels follow from the budgets that clients' devices state.
    """

    widths: tuple[float, ...] | None = None
    """Share of the channels that each level keeps, the smallest first."""
    splits: tuple[tuple[float, ...], ...] | None = None
    """Units and share of the channels of each level, the smallest first."""
    ratios: tuple[float, ...] | None = None
    """Cost of each level as a share of the full model's, the smallest first."""
    levels: Annotated[int | None, Range(1, 100)] = None
    """Number of levels into which clients are clustered by budget; default (None): the number that
    separates the budgets best."""
    rounding: Rounding = "floor"
    ways: ClassVar[tuple[str, ...]] = ("widths", "ratios", "splits")
    """The settings that define the levels; at most one of them is set."""

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
        """True if the levels follow from the clients' budgets."""
        return not self._given()

    def plan(self, task: Task, ratios: tuple[float, ...], early_exits: bool) -> list[Level]:
        """Return the levels; `ratios` are used where neither widths nor splits are given.

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
        """Return the splits that cost these ratios, by Eq. (1) of ScaleFL."""
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
    """Settings of methods whose levels differ in depth alone: full width up to an exit."""

    head: str | None = None
    """Kind of the early exits; `model.head` wins. Default (None): the network's own."""

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
        """Options that the method asks of networks, with their heads."""
        return {**super().asked, "head": self.head}

    def search(self, task: Task, ratios: tuple[float, ...]) -> list[Split]:
        """Return the deepest splits of full width that cost these ratios."""
        return search_depths(task, ratios, self.tolerance, self.cost)
