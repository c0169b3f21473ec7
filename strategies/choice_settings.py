"""The settings of methods whose clients choose: of which architectures, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar

from data.ranges import Range
from models import Task, family
from models.candidates import Candidates
from strategies.federation import Federation, check_least
from strategies.method_settings import MethodSettings

SHARES = (0.5, 0.75, 1.0)
"""Widths to choose from, of a network for which no paper names any."""
Stage = TypeVar("Stage", tuple[int, ...], tuple[float, ...])


@dataclass(frozen=True, kw_only=True)
class ChoiceSettings(MethodSettings):
    """What clients may choose from, and how they do."""

    flexible: Literal["depth", "width", "both"] = "both"
    """What architectures may differ in; the rest is the least that there is."""
    blocks: tuple[tuple[Annotated[int, Range(1, 10_000)], ...], ...] | None = None
    """How many blocks each stage may keep; one list is for all stages. None takes those of the
    network's paper, or two and more."""
    widths: tuple[tuple[Annotated[float, Range(0, 1, above=True)], ...], ...] | None = None
    """Which share of its channels each stage may keep; one list is for all stages. None takes those
    of the network's paper, or a half to all."""
    smallest: float = 0.5
    """Share of the fleet, its first clients, whose architecture is the smallest in any case."""
    choose: Literal["zico", "largest"] = "zico"
    """How the others choose of what they afford: by ZiCo's score on their data, or by size."""
    trials: int = 32
    """Candidates that a client scores; all, where there are no more."""
    population: int = 8
    """Of those scored, the best ones that further ones are made of."""
    batches: int = 2
    batch_size: int = 128
    """What ZiCo looks at: the examples of a batch are fewer where a client has few."""
    masked_loss: bool = True
    """Whether the logits of classes that a client does not have are 0 in its loss."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "trials", "population")
        check_least(self, 2, "batches", "batch_size")
        if not 0 <= self.smallest <= 1:
            raise ValueError(f"smallest is {self.smallest}: expected a share, 0 to 1")

    @property
    def need_clients(self) -> bool:
        """Whether the levels follow from what the clients say: always."""
        return True

    def check(self, federation: Federation) -> None:
        """Raise `ValueError` for candidates that the network does not have."""
        super().check(federation)
        if federation.fleet.spread:
            raise ValueError(
                f"fleet.spread is {federation.fleet.spread}, but clients hold what they have "
                "chosen: expected 0"
            )
        candidates = self.candidates(federation.task)
        for each in (candidates.smallest, candidates.largest):
            federation.task.build(each, device="meta")

    def candidates(self, task: Task) -> Candidates:
        """Return the architectures that clients of a network may choose from."""
        known, stages = family(task.model).candidates, family(task.model).stages
        if not stages:
            raise ValueError(
                f"{task.model} has no stages of blocks that architectures may differ in: choose "
                "another model"
            )
        usual = tuple(tuple(range(min(2, count), count + 1)) for count in stages)
        blocks = _of_stages("blocks", self.blocks, known.blocks if known else usual)
        for stage, (choices, count) in enumerate(zip(blocks, stages, strict=True), 1):
            if choices[-1] > count:
                raise ValueError(
                    f"blocks of stage {stage} are {list(choices)}, but {task.model} has {count}"
                )
        shares = (SHARES,) * len(stages)
        widths = _of_stages("widths", self.widths, known.widths if known else shares)
        return Candidates(blocks, widths).only(self.flexible)


def _of_stages(
    name: str, given: tuple[Stage, ...] | None, usual: tuple[Stage, ...]
) -> tuple[Stage, ...]:
    """Return what was given for each stage, or for all alike, or what is usual."""
    found = given or usual
    found = found * len(usual) if len(found) == 1 else found
    if len(found) != len(usual):
        raise ValueError(
            f"{name} are given for {len(found)} stages: expected one list, or {len(usual)}"
        )
    return found
