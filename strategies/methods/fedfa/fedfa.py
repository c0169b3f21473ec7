"""FedFA (Park, Joe-Wong: "Federated Learning with Flexible Architectures", ECML PKDD 2024).

- Clients choose blocks (depth) and width of each stage, by ZiCo's score on their own data; the
  global model has the most of each (Algorithm 1, lines 1 to 3):
  `strategies/methods/choosing/choosing.py`.
- Layer grafting (Algorithm 2): missing blocks are filled with copies of the client's last block of
  that stage, so that no part of the global model is trained by few clients only.
- Scalable aggregation (Algorithm 1, lines 12 to 22): layers are brought to one scale by the norms
  of their weights without outliers: `strategies/methods/fedfa/scaled_by_norm.py`.
- A client gets the first blocks and channels of the global model (Algorithm 3).
- Static batch norm; the logits of classes that a client does not have are 0 in its loss.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from models import Slice, family
from models.slicing import SliceMap
from strategies.aggregation.aggregators import Aggregator
from strategies.aggregation.norm_bounds import Inner
from strategies.aggregation.update import Update
from strategies.federation import Federation
from strategies.levels.planning import Level
from strategies.levels.submodels import Cut
from strategies.methods.choosing.choosing import ChoiceSettings, ChoosingStrategy, union
from strategies.methods.fedfa.grafting import Grafted, grafted
from strategies.methods.fedfa.scaled_by_norm import LayerNorm95, Reading, Scale, ScaledByNorm
from strategies.nodes.enrolment import Client

Graft = tuple[SliceMap, Mapping[str, str]]
"""The map of a grafted architecture, and the source of each of its tensors in the client's own."""


@dataclass(frozen=True, kw_only=True)
class FedFASettings(ChoiceSettings):
    """FedFA's settings; `flexible` selects one of its three variants."""

    name: str = "fedfa"
    norm: str | None = "bn-static"
    graft: bool = True
    """Fill missing blocks with copies of the client's last block of that stage."""
    percentile: float = 95.0
    """Percentile up to which weights are not outliers."""
    reading: Reading = "magnitude"
    """Order of the percentile: by magnitude | signed | central."""
    scale: Scale = "norm"
    """Scale that the layers of all clients are brought to: the mean norm | rms | none."""
    least_norm: float = 1e-3
    """Smallest norm of a layer, as a share of the norm it was sent with; an update below it is
    refused. Scaling up a layer of nearly 0 would have no limit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.percentile <= 100:
            raise ValueError(f"percentile is {self.percentile}: expected above 0, to 100")
        if not 0 <= self.least_norm < 1:
            raise ValueError(f"least_norm is {self.least_norm}: expected a share, less than 1")

    def check(self, federation: Federation) -> None:
        """Raise where a stage may keep its first block alone, which cannot be grafted."""
        super().check(federation)
        for stage, choices in enumerate(self.candidates(federation.task).blocks, 1):
            if self.graft and len(choices) > 1 and choices[0] < 2:
                raise ValueError(
                    f"blocks of stage {stage} are {list(choices)}: expected 2 or more, for a "
                    "stage's first block has other inputs and cannot stand in for the next"
                )


class FedFA(ChoosingStrategy):
    """The server half: grafts, scales and averages."""

    Settings = FedFASettings
    settings: FedFASettings

    def arranged(self, choices: Mapping[int, Slice]) -> list[Slice]:
        """Return the chosen architectures, and their union, the global model, as the last."""
        chosen = super().arranged(choices)
        largest = union(chosen)
        return [*(each for each in chosen if each != largest), largest]

    def trained_with(self, level: Level) -> Collection[Level]:
        """Return the levels trained with a level: through grafting, the global model too."""
        if not self.settings.graft:
            return [level]
        return {level.number: level, len(self.levels): self.levels[-1]}.values()

    def gathered_by(self, client: Client) -> Collection[Cut]:
        """Return the cuts whose statistics a client gathers: those of its own level.

        If no client has chosen the global model, all clients gather for it, too. Among devices that
        state their own budget only those of the largest chosen level do.
        """
        own, last = self.level_of(client), self.levels[-1]
        chosen = {self.level_of(each).number for each in self.clients.values()}
        able = client.profile.budget is None or own.number == max(chosen)
        return [
            Cut(each) for each in ([own, last] if able and last.number not in chosen else [own])
        ]

    def aggregator(self) -> Aggregator:
        """Return the config's aggregator; it averages grafted layers of one scale."""
        settings, start = self.settings, self.state
        norm = LayerNorm95(settings.percentile, settings.reading, settings.scale)

        def wrapped(inner: Inner) -> Inner:
            scaled = ScaledByNorm(inner, start, norm, settings.least_norm)
            return Grafted(scaled, self.grafted) if settings.graft else scaled

        return self.federation.aggregation.make(wrapped)

    def grafted(self, update: Update) -> Update:
        """Return an update with grafted blocks where its architecture has none (Algorithm 2)."""
        where, sources = self._grafts[update.slice]
        held = {name: source for name, source in sources.items() if source in update.state}
        state = {name: update.state[source] for name, source in held.items()}
        return replace(update, state=state, map=_part_of(where, frozenset(held)))

    @cached_property
    def _grafts(self) -> dict[Slice, Graft]:
        """Each level's graft, by slice."""
        return {level.slice: self._graft(level) for level in self.levels}

    def _graft(self, own: Level) -> Graft:
        """Return the map of a level's grafted architecture, and the source of each tensor."""
        task, wanted = self.federation.task, self.levels[-1].slice.blocks
        deep = replace(own, slice=replace(own.slice, blocks=wanted))
        held, places = self.submodels.at(own).map.regions, self.submodels.at(deep).map.regions
        shared = [name for name, region in held.items() if not region.banked]
        sources = grafted(shared, own.slice.blocks or (), wanted or (), family(task.model).blocks)
        banked = {name: name for name, region in held.items() if region.banked}
        return SliceMap({name: places[name] for name in sources | banked}), sources | banked


# Cached, since NestedMean counts the weights of updates that share a map in one go.
@lru_cache(maxsize=256)
def _part_of(where: SliceMap, names: frozenset[str]) -> SliceMap:
    """Return a map of some tensors alone: clients may report statistics without the rest."""
    if len(names) == len(where.regions):
        return where
    return SliceMap({name: region for name, region in where.regions.items() if name in names})
