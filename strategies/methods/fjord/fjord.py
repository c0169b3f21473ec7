"""FjORD (Horvath et al.: "FjORD: Fair and Accurate Federated Learning", NeurIPS 2021).

- Ordered dropout: a client draws a width for every batch, up to the largest that it affords, and
  trains only the first channels. These so become the most important ones.
- The drawn network runs on parts of the client's weights, in place (`narrow_network.py`). The rest
  of the weights does not move, not even by momentum or weight decay.
- Batch norms have statistics for each width, and one affine pair of which a width uses the first
  part. The server averages the statistics of a width over the clients that train it.
- With distillation the largest width learns from the labels in every batch, and the drawn width
  from the largest one's answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from models import slice_map
from models.families import SlicedNetwork
from models.slicing import Rounding, is_running_statistic, nested_width
from strategies.assignment import Assignment
from strategies.federation import Federation
from strategies.levels.cost import cost
from strategies.levels.planning import Level
from strategies.levels.submodels import Cut
from strategies.method_settings import PlannedSettings
from strategies.methods.fjord.narrow_network import NarrowNetwork
from strategies.nodes.enrolment import Client
from strategies.round import NestedStrategy
from training.devices import PlacedNetwork, Placement
from training.local_training import LocalTraining

WIDTHS = 2**31
"""Separates the random stream for widths from the one for the examples' order, of the same seed."""


@dataclass(frozen=True, kw_only=True)
class FjORDSettings(PlannedSettings):
    """FjORD's settings: `widths`; the paper's are 0.2 to 1 in fifths."""

    name: str = "fjord"
    rounding: Rounding = "ceil"
    norm: str | None = "bn-running"
    widths: tuple[float, ...] | None = (0.2, 0.4, 0.6, 0.8, 1.0)
    distillation: bool = False
    """Let the drawn width learn from the answers of the largest one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.widths:
            raise ValueError(
                "widths are null: expected those that clients draw from, such as [0.5,1]"
            )

    def check(self, federation: Federation) -> None:
        """Raise where a step cannot move the drawn part alone."""
        super().check(federation)
        if self.widths == (1.0,) or self.distillation:
            return  # every step moves all weights
        if federation.train.optimizer != "sgd":
            raise ValueError(
                f"train.optimizer is {federation.train.optimizer}, which moves what a batch's "
                "width leaves out, too: choose sgd, or strategy.distillation=true"
            )
        task, (least, *_) = federation.task, self.widths or ()
        narrow = task.build(replace(task.whole, width=least, rounding=self.rounding), "meta")
        where = slice_map(task.build(task.whole, "meta"), narrow, bank_of=lambda name: None)
        for name, region in where.regions.items():
            if not all(isinstance(index, slice) for index in region.axes):
                raise ValueError(
                    f"the first channels of {name} of {task.model} are not one block, which a "
                    "step could move by itself: choose a residual network such as resnet20, or "
                    "strategy.distillation=true"
                )


class FjORDTraining(LocalTraining):
    """The client half: draws a width for every batch."""

    settings: FjORDSettings

    def begin(self, network: SlicedNetwork) -> None:
        """Make the narrower networks, which are parts of this one."""
        task, held = self.work.task, self.work.slice
        numbers = range(1, len(held.nested) + 1)
        self.narrower = [NarrowNetwork.of(network, task, held, number) for number in numbers]
        self.places = [Placement.of(self.work.train, each.module) for each in self.narrower]
        self.chance = torch.Generator().manual_seed(WIDTHS + self.work.seed)

    def moved(self, network: SlicedNetwork) -> Sequence[Tensor]:
        """Return the parameters, with their parts where these have gradients of their own."""
        whole = super().moved(network)
        if self.settings.distillation:
            return whole
        return [*whole, *(part for narrow in self.narrower for part in narrow.leaves.values())]

    def loss(self, network: PlacedNetwork, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return the cross-entropy of the drawn width; with distillation see `distilled`."""
        drawn = int(torch.randint(len(self.narrower) + 1, (), generator=self.chance))
        # The client's own width, which is the last choice.
        if drawn == len(self.narrower):
            return super().loss(network, inputs, labels)
        narrow, logits = self.narrower[drawn], self.places[drawn].logits
        if not self.settings.distillation:
            return F.cross_entropy(logits(narrow, inputs)[-1], labels)
        teacher = network(inputs)[-1]
        return distilled(teacher, logits(narrow.within, inputs)[-1], labels)


def distilled(teacher: Tensor, student: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of the largest width on the labels, and of a narrower one on its answers."""
    answers = teacher.detach().softmax(1)
    return F.cross_entropy(teacher, labels) + F.cross_entropy(student, answers)


class FjORD(NestedStrategy):
    """The server half: a client's slice also contains all narrower ones."""

    Settings = FjORDSettings
    Training = FjORDTraining
    settings: FjORDSettings

    def assign(self, round: int, clients: Sequence[Client]) -> Iterable[Assignment]:
        """Return each client with its level, and with the statistics of all narrower levels."""
        return [
            replace(
                each,
                cut=Cut(self._with_narrower(each.cut.level), each.cut.window),
                macs=self._macs(each.cut.level),
            )
            for each in super().assign(round, clients)
        ]

    def bank(self, name: str, level: Level) -> str | None:
        """Return the bank of statistics: that of the level itself, or of a narrower one."""
        if not is_running_statistic(name):
            return None
        return f"level{nested_width(name) or level.number}"

    def trained_with(self, level: Level) -> Sequence[Level]:
        """Return a level and all narrower ones: its clients draw them, too."""
        return self.levels[: level.number]

    def _macs(self, level: Level) -> int:
        """Return the mean MACs of the drawn widths; distillation adds those of the level itself."""
        macs = [cost(self.federation.task, each.slice).macs for each in self.trained_with(level)]
        own, drawn = macs[-1], len(macs)
        if self.settings.distillation:
            return own + sum(macs[:-1]) // drawn
        return sum(macs) // drawn

    def _with_narrower(self, level: Level) -> Level:
        narrower = (self.settings.widths or ())[: level.number - 1]
        return replace(level, slice=replace(level.slice, nested=narrower))
