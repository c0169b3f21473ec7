"""Base of methods whose clients choose an architecture: blocks and width of each stage (FedFA).

The server offers candidates. Each client chooses one by its own data, within what it affords. Every
chosen architecture is a level.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Literal, TypeVar

import numpy as np
import torch
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from data.ranges import Range
from models import Slice, Task, family
from models.candidates import Candidates
from models.families import SlicedNetwork
from protocol.reading import ProtocolError
from protocol.records import CHOICE
from protocol.reports import Choice
from protocol.work import Work
from strategies.assignment import budget_of, takes_largest
from strategies.federation import Federation, check_least
from strategies.levels.cost import price_of
from strategies.levels.patterns import level_of_slice
from strategies.levels.planning import Level
from strategies.method_settings import MethodSettings
from strategies.methods.choosing.architecture_search import best_of, zico_scorer
from strategies.nodes.enrolment import Client
from strategies.nodes.exchange import stream
from strategies.round import NestedStrategy
from training.local_training import MaskedTraining

SHARES = (0.5, 0.75, 1.0)
"""Default widths to choose from, for a network whose paper names none."""
Stage = TypeVar("Stage", tuple[int, ...], tuple[float, ...])


@dataclass(frozen=True, kw_only=True)
class ChoiceSettings(MethodSettings):
    """The architectures that clients may choose from, and their way of choosing."""

    flexible: Literal["depth", "width", "both"] = "both"
    """Dimension in which architectures differ; the other one is at its smallest."""
    blocks: tuple[tuple[Annotated[int, Range(1, 10_000)], ...], ...] | None = None
    """Numbers of blocks that each stage may keep; a single list is for all stages. Default (None):
    those of the network's paper, or two and more."""
    widths: tuple[tuple[Annotated[float, Range(0, 1, above=True)], ...], ...] | None = None
    """Shares of its channels that each stage may keep; a single list is for all stages. Default
    (None): those of the network's paper, or a half to all."""
    smallest: float = 0.5
    """Share of the fleet, its first clients, that gets the smallest architecture unasked."""
    choose: Literal["zico", "largest"] = "zico"
    """Choice of the others: the best ZiCo score on their data, or the largest they afford."""
    trials: int = 32
    """Most candidates that a client scores."""
    batches: int = 2
    batch_size: int = 128
    """Batches, and examples per batch, for ZiCo; batches are smaller if a client has few."""
    masked_loss: bool = True
    """Set the logits of classes that a client does not have to 0 in its loss."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "trials")
        check_least(self, 2, "batches", "batch_size")
        if not 0 <= self.smallest <= 1:
            raise ValueError(f"smallest is {self.smallest}: expected a share, 0 to 1")

    @property
    def need_clients(self) -> bool:
        """True: the levels follow from the clients' choices."""
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
        """Return the architectures that clients may choose from."""
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
    """Return the setting for each stage: given per stage, given once for all, or the usual one."""
    found = given or usual
    found = found * len(usual) if len(found) == 1 else found
    if len(found) != len(usual):
        raise ValueError(
            f"{name} are given for {len(found)} stages: expected one list, or {len(usual)}"
        )
    return found


LONGEST_SEARCH, LATE_SEARCH = 600.0, 60.0
"""Seconds that a client has to choose in a run without a deadline: at the start, and later, when
other clients wait for it."""
NO_LEVEL = "it has joined after the start, with an architecture in which none of the run's lies"
STREAM = 0x0A2C
"""Separates the random stream of a client's choice from that of its rounds."""


class ChoosingTraining(MaskedTraining):
    """The client half: chooses an architecture, then trains it on the client's own classes."""

    settings: ChoiceSettings

    def answer(self, network: SlicedNetwork | None) -> RecordDict:
        """Return the best of the offered candidates within the client's budget."""
        settings, work, offered = self.settings, self.work, self.told
        candidates = Candidates(offered["blocks"], offered["widths"])

        def price(candidate: Slice) -> int:
            return price_of(work.task, candidate, settings.cost)

        score = None
        if settings.choose == "zico":
            score = zico_scorer(
                work.task,
                self.data,
                settings.batches,
                settings.batch_size,
                work.seed,
                work.train.device,
            )
        chosen = best_of(
            candidates,
            score or price,
            lambda candidate: price(candidate) <= offered["most"],
            settings.trials,
            np.random.default_rng(work.seed),
        )
        return RecordDict({CHOICE: Choice.of(chosen).record()})


class ChoosingStrategy(NestedStrategy):
    """The server half: every chosen architecture is a level, the smallest first."""

    Settings = ChoiceSettings
    Training = ChoosingTraining
    settings: ChoiceSettings

    architectures: Sequence[Slice] = ()
    """The architectures of the levels, the smallest first."""

    @cached_property
    def choices(self) -> dict[int, Slice]:
        """The architecture that each client has chosen, by client number."""
        return {}

    @cached_property
    def candidates(self) -> Candidates:
        """The architectures that clients choose from."""
        return self.settings.candidates(self.federation.task)

    # --- who chooses what ------------------------------------------------------------------------

    def ask(self, grid: Grid, clients: Sequence[Client]) -> Mapping[int, str]:
        """Let clients choose; a client with a choice that was not offered cannot take part."""
        asked, refused = list[Client](), dict[int, str]()
        for client in clients:
            fixed = self.fixed(client)
            if fixed is not None:
                self.choices[client.number] = fixed
            elif not self._still_fits(client):
                self.choices.pop(client.number, None)
                asked.append(client)
        for reply in stream(
            grid, self._offers(asked), self.federation.in_flight, self._patience(len(asked))
        ):
            try:
                if reply.message is None:
                    raise ProtocolError(f"no architecture: {reply.failure} {reply.detail}".strip())
                self.choices[reply.to.number] = self._checked(
                    reply.to, Choice.read(reply.message.content)
                )
            except ProtocolError as error:
                refused[reply.to.number] = str(error)
        for number in {client.number for client in asked} - self.choices.keys() - refused.keys():
            refused[number] = "no architecture: there was no time left to ask"
        late = [each for each in asked if self.levels and not self._held_in(each.number)]
        return {**refused, **{each.number: NO_LEVEL for each in late if each.number not in refused}}

    def _still_fits(self, client: Client) -> bool:
        """Return whether a choice from before a resume is still within the client's budget."""
        chosen = self.choices.get(client.number)
        if chosen is None:
            return False
        price = price_of(self.federation.task, chosen, self.settings.cost)
        return chosen == self.candidates.smallest or price <= self.most(client)

    def _patience(self, asked: int) -> float:
        """Return the seconds for this many clients to choose: some at a time, each in full time."""
        usual = LATE_SEARCH if self.levels else LONGEST_SEARCH
        return (self.federation.deadline or usual) * max(
            1, math.ceil(asked / self.federation.in_flight)
        )

    def fixed(self, client: Client) -> Slice | None:
        """Return the architecture of a client that has no choice, or None.

        The first clients hold the smallest, attackers with `attack.largest` the largest.
        """
        if takes_largest(client, self.federation):
            return self.candidates.largest
        of = max(client.profile.partitions or self.federation.fleet.clients, client.number + 1)
        first = client.profile.budget is None and client.number < self.settings.smallest * of
        return self.candidates.smallest if first else None

    def most(self, client: Client) -> int:
        """Return the highest cost of an architecture that a client may choose."""
        full = price_of(self.federation.task, self.candidates.largest, self.settings.cost)
        budget = min(1.0, budget_of(client, self.federation.fleet))
        return int(full * budget * (1 + self.settings.tolerance))

    def _offers(self, clients: Iterable[Client]) -> Iterator[tuple[Client, Message]]:
        federation, offered = self.federation, self.candidates
        for client in clients:
            chance = np.random.default_rng((federation.seed, STREAM, client.number))
            work = Work(
                federation.task,
                Slice(),
                federation.dataset,
                federation.local_train,
                method=self.settings.name,
                settings=self.settings,
                told={
                    "blocks": offered.blocks,
                    "widths": offered.widths,
                    "most": self.most(client),
                },
                seed=int(chance.integers(2**31)),
            )
            content = RecordDict({"work": work.record()})
            yield (
                client,
                Message(content, dst_node_id=client.node, message_type="query.method"),
            )

    def _checked(self, client: Client, choice: Choice) -> Slice:
        found = self.candidates.find(choice.blocks, choice.width)
        if found is None:
            raise ProtocolError(
                f"chose blocks {list(choice.blocks)} and widths {list(choice.width)}: expected "
                f"blocks of {self.candidates.blocks} and widths of {self.candidates.widths}"
            )
        costs, most = price_of(self.federation.task, found, self.settings.cost), self.most(client)
        if costs > most and found != self.candidates.smallest:
            raise ProtocolError(
                f"chose an architecture of {costs:,} {self.settings.cost}: expected {most:,} at "
                "most"
            )
        return found

    # --- levels ----------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Make the levels from the clients' choices."""
        if not self.levels:
            self.architectures = self.arranged(self.choices)
            self._prepare()

    def arranged(self, choices: Mapping[int, Slice]) -> list[Slice]:
        """Return the levels' architectures from the clients' choices."""
        return sorted(set(choices.values()), key=self._size)

    def plan(self) -> list[Level]:
        """Return the levels, one for each architecture."""
        task = self.federation.task
        return [level_of_slice(task, n, each) for n, each in enumerate(self.architectures, 1)]

    def whole(self) -> Slice:
        """Return the smallest architecture that contains all others."""
        return replace(union(self.architectures), exits=(self.federation.task.units,))

    def level_of(self, client: Client) -> Level:
        """Return the level of a client's choice.

        A client that joined later, with an architecture that is not a level, holds the largest
        level that lies within its choice.
        """
        chosen = self.choices[client.number]
        if chosen in self.architectures:
            return self.levels[self.architectures.index(chosen)]
        return self.levels[self._held_in(client.number)[-1]]

    def _held_in(self, client: int) -> list[int]:
        """Return the indices of the levels that lie within a client's choice."""
        chosen = self.choices.get(client)
        if chosen is None:
            return []
        return [n for n, each in enumerate(self.architectures) if union([each, chosen]) == chosen]

    def levels_of(self, client: Client) -> Mapping[Level, float]:
        """Return the one level that a client may be assigned."""
        return {self.level_of(client): 1.0}

    def _size(self, architecture: Slice) -> tuple[object, ...]:
        price = price_of(self.federation.task, architecture, self.settings.cost)
        return price, architecture.blocks, architecture.width

    # --- state -----------------------------------------------------------------------------------

    def plan_dict(self) -> dict[str, Tensor]:
        """Return the levels' architectures, and each client's choice."""
        numbers = sorted(self.choices)
        return {
            "architectures": _table(self.architectures),
            "choices": _table([self.choices[number] for number in numbers]),
            "choosers": torch.tensor(numbers),
        }

    def load_plan_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the architectures and choices of a resumed run."""
        self.architectures = self._read(tensors["architectures"])
        chosen = self._read(tensors["choices"])
        self.choices.update(zip(tensors["choosers"].tolist(), chosen, strict=True))

    def _read(self, table: Tensor) -> list[Slice]:
        """Return the architectures of a table with one row each."""
        rounding, found = self.candidates.rounding, []
        for row in table.tolist():
            stages = len(row) // 2
            blocks = tuple(tuple(range(int(count))) for count in row[:stages])
            found.append(Slice(tuple(row[stages:]), blocks, rounding=rounding))
        return found


def union(architectures: Sequence[Slice]) -> Slice:
    """Return the architecture with the most blocks and the largest width in every stage."""
    choices = [Choice.of(each) for each in architectures]
    blocks = map(max, *(each.blocks for each in choices), (0,) * len(choices[0].blocks))
    widths = map(max, *(each.width for each in choices), (0.0,) * len(choices[0].width))
    kept = tuple(tuple(range(count)) for count in blocks)
    return replace(architectures[0], width=tuple(widths), blocks=kept)


def _table(architectures: Sequence[Slice]) -> Tensor:
    choices = [Choice.of(each) for each in architectures]
    rows = [[*each.blocks, *each.width] for each in choices]
    return torch.tensor(rows, dtype=torch.float64)
