"""FlexiFed (Wang et al.: "FlexiFed", WWW 2023): architectures share their common first layers.

Layers of two architectures are common from the first one up to where a name or a shape differs;
later layers with the same name, such as the classifier, are not. Three rules decide the sharing:

- basic: all clients share the layers common to all; each client keeps the rest for itself.
- clustered: all share the layers common to all; clients of one architecture share the rest.
- max: each layer is shared by all clients whose architectures agree up to it.

Means are unweighted, unless the run's `weighting` says otherwise. A layer whose clients are all
absent in a round stays unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from flwr.serverapp import Grid
from torch import Tensor

from models import Slice
from strategies.levels.planning import Level
from strategies.levels.submodels import Cut
from strategies.methods.choosing.choosing import ChoiceSettings, ChoosingStrategy
from strategies.nodes.enrolment import Client

Layer = tuple[str, tuple[int, ...]]
"""A tensor's name and shape."""


@dataclass(frozen=True, kw_only=True)
class FlexiFedSettings(ChoiceSettings):
    """FlexiFed's settings."""

    name: str = "flexifed"
    flexible: Literal["depth", "width", "both"] = "depth"
    masked_loss: bool = False
    rule: Literal["basic", "clustered", "max"] = "max"
    """Layers that are shared: common to all | same architecture | same up to a layer."""


class FlexiFed(ChoosingStrategy):
    """The server half: levels share their common first layers, through banks."""

    Settings = FlexiFedSettings
    settings: FlexiFedSettings

    owners: Sequence[int] = ()
    """Client number of each level, where each client has its own level."""

    def ask(self, grid: Grid, clients: Sequence[Client]) -> Mapping[int, str]:
        """Let clients choose; with rule=basic no client can join later."""
        late = [each.number for each in clients if self.owners and each.number not in self.owners]
        refused = super().ask(grid, [each for each in clients if each.number not in late])
        why = (
            "it has joined after the start, but rule=basic has a model for those of the start only"
        )
        return {**refused, **dict.fromkeys(late, why)}

    def arranged(self, choices: Mapping[int, Slice]) -> list[Slice]:
        """Return the architectures that were chosen; with rule=basic one per client."""
        if self.settings.rule != "basic":
            return super().arranged(choices)
        self.owners = sorted(choices, key=lambda client: (self._size(choices[client]), client))
        return [choices[client] for client in self.owners]

    def level_of(self, client: Client) -> Level:
        """Return the level of a client's architecture; with rule=basic the client's own level."""
        if not self.owners:
            return super().level_of(client)
        return self.levels[self.owners.index(client.number)]

    def bank(self, name: str, level: Level) -> str | None:
        """Return the bank of the levels that share a layer, named after the first of them."""
        own = self._layers[level.number]
        place = next(place for place, layer in enumerate(own) if layer[0] == name)
        # Levels whose layers are equal up to and including this one.
        alike = [n for n, each in self._layers.items() if each[: place + 1] == own[: place + 1]]
        if len(alike) == len(self._layers):
            return None
        return f"level{alike[0] if self.settings.rule == 'max' else level.number}"

    def tested_by(self, client: Client) -> Mapping[str, Cut]:
        """Return the cuts that a client tests; with rule=basic its own model alone."""
        found = super().tested_by(client)
        return {"local": found["local"]} if self.owners else found

    @cached_property
    def _layers(self) -> dict[int, list[Layer]]:
        """Each level's layers, in the network's order."""
        task = self.federation.task
        return {
            level.number: [
                (name, tuple(tensor.shape))
                for name, tensor in task.build(level.slice, "meta").state_dict().items()
            ]
            for level in self.levels
        }

    def plan_dict(self) -> dict[str, Tensor]:
        """Return the choices, and the client of each level."""
        return {**super().plan_dict(), "owners": torch.tensor(self.owners)}

    def load_plan_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the choices, and the client of each level."""
        super().load_plan_dict(tensors)
        self.owners = [int(owner) for owner in tensors["owners"]]
