"""DepthFL (Kim et al.: "DepthFL", ICLR 2023): levels of depth whose exits teach each other.

- A level is the network at full width up to an exit, with the exits of the levels below it.
- Clients minimise the cross-entropy of each exit plus, with weight c(t), the divergence of its
  answers from those of each other exit.
- The server averages each tensor over the clients that hold it, running statistics too, since all
  levels have the same width.
- A network answers with the mean of its exits' logits.
- FedDyn (Acar et al., ICLR 2021) may correct the drift of clients' optima: `alpha` turns it on.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from models import State, Task
from models.families import SlicedNetwork
from strategies.federation import Federation, check_least
from strategies.levels.planning import Level
from strategies.method_settings import DepthSettings
from strategies.round import NestedStrategy
from training.devices import PlacedNetwork
from training.local_training import LocalTraining
from training.shared_losses import kl_divergence


@dataclass(frozen=True, kw_only=True)
class DepthFLSettings(DepthSettings):
    """DepthFL's settings; the defaults are the paper's, except `alpha`, which is 0.1 there."""

    name: str = "depthfl"
    norm: str | None = "bn-running"
    head: str | None = "attention"
    exits: Literal["all", "last"] = "all"
    """Exits that a level holds and trains; `last`, its own exit alone, is InclusiveFL."""
    distillation: bool = True
    """Let the exits learn from each other."""
    ramp_up: int = 300
    """Rounds until distillation has its full weight."""
    alpha: float = 0.0
    """Weight of the drift correction, FedDyn's; 0 is without it."""
    feddyn_clients: Literal["all", "holders"] = "all"
    """Clients over which FedDyn averages a tensor's drift: all, or those whose level holds it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_least(self, 1, "ramp_up")
        if not 0 <= self.alpha < math.inf:
            raise ValueError(f"alpha is {self.alpha}: expected a finite number, 0 or more")

    def check(self, federation: Federation) -> None:
        """Raise where FedDyn's server could not compute the mean drift of its clients."""
        super().check(federation)
        if self.alpha and federation.weighting != "uniform":
            raise ValueError(
                f"weighting is {federation.weighting}, but FedDyn (alpha {self.alpha}) counts all "
                "clients alike: choose weighting uniform, or alpha 0"
            )
        if self.alpha and not federation.aggregation.averages:
            raise ValueError(
                f"aggregation is {federation.aggregation.name}, but FedDyn (alpha {self.alpha}) "
                "needs the mean of what clients sent: choose aggregation nested_mean or "
                "norm_bound, or alpha 0"
            )

    @property
    def remembers(self) -> bool:
        """True if clients keep their drift: where FedDyn is on."""
        return self.alpha > 0

    @property
    def ensemble(self) -> bool:
        """True if a network answers with the mean of its exits' logits."""
        return True

    def plan(self, task: Task, ratios: tuple[float, ...], early_exits: bool) -> list[Level]:
        """Return the levels; with exits=all each also holds the exits below its own."""
        return super().plan(task, ratios, early_exits and self.exits == "all")


class DepthFLTraining(LocalTraining):
    """The client half: mutual distillation among its exits, and FedDyn's two terms."""

    settings: DepthFLSettings

    def begin(self, network: SlicedNetwork) -> None:
        """Keep the first weights of the round, for FedDyn."""
        self.start: dict[str, Tensor] = {}
        if self.settings.alpha:
            self.start = {name: p.detach().clone() for name, p in network.named_parameters()}
            unknown = {name: torch.zeros_like(p) for name, p in self.start.items()}
            self.memory = {**unknown, **self.memory}

    def loss(self, network: PlacedNetwork, inputs: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of all exits, with FedDyn's terms where it is on."""
        settings = self.settings
        share = ramp(self.work.round, settings.ramp_up) if settings.distillation else 0.0
        loss = mutual_distillation(network(inputs), labels, share)
        return loss + self._dynamic_terms(network.module) if settings.alpha else loss

    def reply(self, network: SlicedNetwork) -> State:
        """Return the slice's tensors; the client's drift g becomes g - alpha (w - start).

        The drift of tensors outside this level is kept. If the server refuses the reply, the
        client's next round starts without it, and without this drift.
        """
        if self.settings.alpha:
            moved = {name: p.detach() - self.start[name] for name, p in network.named_parameters()}
            own = {name: self.memory[name] - self.settings.alpha * m for name, m in moved.items()}
            self.memory = {**self.memory, **own}
        return super().reply(network)

    def _dynamic_terms(self, network: SlicedNetwork) -> Tensor:
        """Return -<g, w> + alpha/2 ||w - start||^2 over all parameters, with heads and norms."""
        terms = [
            (self.settings.alpha / 2 * (p - self.start[name]) ** 2 - self.memory[name] * p).sum()
            for name, p in network.named_parameters()
        ]
        return torch.stack(terms).sum()


def ramp(round: int, rounds: int) -> float:
    """Return c(t) = exp(-5 (1 - t/rounds)^2), 1 from t = `rounds` on; t is 0 in the first round."""
    left = 1 - min(round - 1, rounds) / rounds
    return math.exp(-5 * left**2)


def mutual_distillation(logits: list[Tensor], labels: Tensor, share: float) -> Tensor:
    """Return the exits' losses, with mutual distillation at a weight of `share`.

    Each exit adds its cross-entropy and its mean divergence from the other exits; a single exit has
    cross-entropy alone. The authors add 1e-7 to the teachers' probabilities before the logarithm;
    log_softmax does not need it.
    """
    loss = torch.stack([F.cross_entropy(each, labels) for each in logits]).sum()
    if len(logits) == 1 or not share:
        return loss
    # Each exit teaches all others; no gradient flows into the teacher.
    divergences = [
        kl_divergence(student, teacher.detach())
        for student in logits
        for teacher in logits
        if teacher is not student
    ]
    return loss + share / (len(logits) - 1) * torch.stack(divergences).sum()


class DepthFL(NestedStrategy):
    """The server half: all levels share statistics, and FedDyn's step follows the mean."""

    Settings = DepthFLSettings
    Training = DepthFLTraining
    early_exits = True
    settings: DepthFLSettings

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.drift: dict[str, Tensor] = {}
        """FedDyn's h, by parameter: the mean over all clients of their drift g."""

    def bank(self, name: str, level: Level) -> str | None:
        """Return no bank: with one width, running statistics are averaged like weights."""
        return None

    def server_step(self, state: State, previous: State) -> State:
        """Return FedDyn's w = mean - h/alpha, after h -= alpha (replies/clients) (mean - w).

        This applies to each parameter. Buffers get their mean; tensors that no client held stay.
        """
        alpha, after = self.settings.alpha, dict(state)
        for name, share in self._shares().items() if alpha else ():
            drift = self.drift.get(name, torch.zeros_like(state[name]))
            self.drift[name] = drift - alpha * share * (state[name] - previous[name])
            after[name] = state[name] - self.drift[name] / alpha
        return after

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state that rounds depend on, with FedDyn's drift."""
        return super().state_dict() | {f"drift.{name}": t for name, t in self.drift.items()}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state that `state_dict` returned."""
        super().load_state_dict(tensors)
        own = {name: t for name, t in tensors.items() if name.startswith("drift.")}
        self.drift = {name.removeprefix("drift."): tensor for name, tensor in own.items()}

    def _shares(self) -> dict[str, float]:
        """Return, for each parameter that was trained, the share of the clients that trained it."""
        replied = {level: part.replied for level, part in self.tally.slices.items()}
        # A client that draws its level may hold the tensors of the largest of them.
        largest = Counter(
            max(level.number for level in self.levels_of(client))
            for client in self.clients.values()
        )
        everyone, holders = len(self.clients), self._holders(largest)
        return {
            name: count / (everyone if self.settings.feddyn_clients == "all" else holders[name])
            for name, count in self._holders(replied).items()
        }

    def _holders(self, clients: Mapping[int, int]) -> Counter[str]:
        """Return the number of clients that hold each parameter, from the clients of each level."""
        held: Counter[str] = Counter()
        for level in self.levels:
            network = self.federation.task.build(level.slice, device="meta")
            for name, _ in network.named_parameters():
                held[name] += clients.get(level.number, 0)
        return +held
