"""NeFL (Kang et al.: "Nested Federated Learning for Heterogeneous Clients"), and its ablation.

- Submodels lack channels (NeFL-W), residual blocks (NeFL-D) or both (NeFL-WD): section 4.1. Skipped
  blocks may be anywhere, and are absent: not built, not sent, not computed.
- A step size multiplies each residual branch, as in an ODE solver that takes fewer, larger steps
  (section 3). Step sizes are learnt, or constant (N/L). They start at 1 (NeFL-D), or a block also
  takes over the steps of the blocks skipped behind it (NeFL-D_O).
- Algorithm 2: parameters are averaged over the submodels that hold them (NeFedAvg, the base's
  nested mean); inconsistent parameters (batch norms, step sizes) are kept per submodel (FedAvg).
- In a dynamic fleet clients draw a submodel near their tier's each round (B.5): `fleet.spread`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from models import State, Task, family, names
from models.slicing import Rounding, Slice, is_running_statistic, is_step_size
from strategies.federation import Federation, rises_to_one
from strategies.levels.cost import price_of
from strategies.levels.patterns import (
    CutKind,
    euler_steps,
    patterned_levels,
    read_pattern,
    search_patterns,
    width_of,
)
from strategies.levels.planning import Level
from strategies.method_settings import PlannedSettings
from strategies.round import NestedStrategy
from training.local_training import MaskedTraining


@dataclass(frozen=True, kw_only=True)
class NeFLSettings(PlannedSettings):
    """NeFL's settings: submodels from `patterns` and `gamma_w`, from `widths`, or for `ratios`."""

    ways: ClassVar[tuple[str, ...]] = (*PlannedSettings.ways, "patterns", "gamma_w")
    name: str = "nefl"
    rounding: Rounding = "ceil"
    norm: str | None = "bn-running"
    cut: CutKind = "both"
    """Parts that submodels found for ratios lack: width (NeFL-W) | depth (NeFL-D) | both (NeFL-WD)
    | prefix (all blocks after a first part: NeFL's version of DepthFL)."""
    patterns: tuple[str, ...] | None = None
    """Blocks that each submodel keeps, the smallest first: 0 or 1 per block, a group per stage."""
    gamma_w: tuple[float, ...] | None = None
    """Share of the parameters that each submodel's width leaves: it keeps the root of the
    channels."""
    steps: Literal["learnable", "constant"] = "learnable"
    first_steps: Literal["one", "euler"] = "one"
    """First step sizes: 1, or with `euler` 1 plus the number of blocks skipped behind a block."""
    inconsistent: tuple[str, ...] = ("batch-norm", "step")
    """Parameters that each submodel has of its own: batch-norm, layer-norm, group-norm, step, or
    tensors by name (`fc.*`). Batch norm's statistics always are."""
    masked_loss: bool = False
    """Set the logits of classes that a client does not have to 0 in its loss (HeteroFL)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.splits:
            raise ValueError(
                "splits end in early exits, which NeFL has not: give ratios, widths, patterns or "
                "gamma_w"
            )
        if self.gamma_w and not rises_to_one(self.gamma_w):
            raise ValueError(
                f"gamma_w is {list(self.gamma_w)}: expected to rise from above 0 to 1, the full "
                "model"
            )
        if self.gamma_w and self.patterns and len(self.gamma_w) != len(self.patterns):
            raise ValueError(
                f"{len(self.gamma_w)} of gamma_w, but {len(self.patterns)} patterns: expected one "
                "of each for a submodel"
            )
        own = self._given_submodels()
        if own is not None and self.cut not in ("both", own):
            raise ValueError(
                f"cut is {self.cut}, but the submodels that are given cut {own}: choose one"
            )

    @property
    def asked(self) -> dict[str, str | None]:
        """Options that the method asks of networks, with step sizes."""
        return {**super().asked, "steps": self.steps}

    def check(self, federation: Federation) -> None:
        """Raise `ValueError` for patterns, step sizes or rules that the network cannot have."""
        super().check(federation)
        self._check_patterns(federation.task)
        self._check_steps(federation)

    def _check_patterns(self, task: Task) -> None:
        if self.patterns is None:
            return
        kept = [read_pattern(pattern, task.model) for pattern in self.patterns]
        if not self.patterns or "0" in self.patterns[-1]:
            raise ValueError(
                f"patterns are {list(self.patterns)}: expected the full model, without a 0, as the "
                "last"
            )
        slices = [
            Slice(width=width_of(gamma), blocks=blocks, rounding=self.rounding)
            for blocks, gamma in zip(kept, self.gamma_w or (1.0,) * len(kept), strict=True)
        ]
        sizes = [price_of(task, each, "parameters") for each in slices]
        if sizes != sorted(sizes):
            raise ValueError(
                f"patterns keep {sizes} parameters: expected the smallest submodel first"
            )

    def _check_steps(self, federation: Federation) -> None:
        model = federation.model.name
        if "steps" not in family(model).options and (
            self.steps == "learnable" or self.first_steps == "euler"
        ):
            able = [name for name in names() if "steps" in family(name).options]
            raise ValueError(
                f"steps are {self.steps}, but {model} has no step sizes: choose steps=constant and "
                f"first_steps=one, or a model of {', '.join(able)}"
            )
        net = federation.task.build(federation.task.whole, "meta")
        own, steps = tensors_of(net, self.inconsistent), tensors_of(net, [STEP])
        if self.first_steps == "euler" and not (steps and steps <= own):
            raise ValueError(
                f"first_steps is euler, which gives each submodel steps of its own, but "
                f"inconsistent is {list(self.inconsistent)} and model.steps "
                f"{federation.model.options.get('steps')}: expected step among the former, and "
                "learnable or constant"
            )

    def plan(self, task: Task, ratios: tuple[float, ...], early_exits: bool) -> list[Level]:
        """Return the submodels, the smallest first."""
        if not (self.widths or self.patterns or self.gamma_w):
            return search_patterns(task, ratios, self.cut, self.tolerance, self.cost, self.rounding)
        count = len(self.patterns or self.gamma_w or self.widths or ())
        widths = self.widths or tuple(map(width_of, self.gamma_w or (1.0,) * count))
        kept = [read_pattern(pattern, task.model) for pattern in self.patterns or ()]
        return patterned_levels(task, kept or [None] * count, widths, self.rounding)

    def _given(self) -> list[str]:
        # `patterns` and `gamma_w` go together: they count as one way to define the levels.
        given = super()._given()
        return [name for name in given if name != "gamma_w"] if self.patterns else given

    def _given_submodels(self) -> CutKind | None:
        """Return the kind of cut of given submodels, or None if they are found for ratios."""
        if self.patterns is not None:
            return "both" if self.gamma_w else "depth"
        return "width" if self.widths or self.gamma_w else None


class NeFL(NestedStrategy):
    """The server half; clients minimise cross-entropy."""

    Settings = NeFLSettings
    Training = MaskedTraining
    settings: NeFLSettings

    def bank(self, name: str, level: Level) -> str | None:
        """Return the submodel's own bank for inconsistent parameters."""
        return f"level{level.number}" if name in self._inconsistent else None

    def first_of_banks(self, level: Level, full: State) -> Mapping[str, Tensor]:
        """Return banks as cut from the full network; `euler` adds the steps of skipped blocks."""
        banks = dict(super().first_of_banks(level, full))
        steps = [source for source in banks if is_step_size(source.partition("@")[0])]
        kept = level.slice.blocks
        if self.settings.first_steps == "euler" and kept is not None and steps:
            network = family(self.federation.task.model)
            places = [(stage, block) for stage, own in enumerate(kept, 1) for block in own]
            for (stage, block), first in zip(
                places, euler_steps(kept, network.stages), strict=True
            ):
                begin = network.blocks.format(stage=stage, block=block)
                for source in steps:  # none without a shortcut; two in a ViT block
                    if source.startswith(begin):
                        banks[source] = torch.full_like(banks[source], first)
        return banks

    @cached_property
    def _inconsistent(self) -> frozenset[str]:
        net = self.federation.task.build(self.federation.task.whole, "meta")
        statistics = filter(is_running_statistic, net.state_dict())
        return tensors_of(net, self.settings.inconsistent) | frozenset(statistics)


LAYERS: dict[str, type[nn.Module]] = {
    "batch-norm": _BatchNorm,
    "layer-norm": nn.LayerNorm,
    "group-norm": nn.GroupNorm,
}
STEP = "step"
"""The kind of a residual branch's step size, which belongs to no layer."""
KINDS = (*LAYERS, STEP)


def tensors_of(net: nn.Module, rules: Iterable[str]) -> frozenset[str]:
    """Return the names of the tensors that the rules select: kinds, or names such as `fc.*`.

    A kind that the network lacks selects nothing; an unknown name is an error.
    """
    kinds = {name: _kind(net, name) for name in net.state_dict()}
    chosen: set[str] = set()
    for rule in rules:
        found = {name for name, kind in kinds.items() if kind == rule or fnmatch(name, rule)}
        if not found and rule not in KINDS:
            raise ValueError(
                f"no tensor is named {rule!r}: expected a name or a pattern of names such as "
                f"{next(reversed(kinds))!r}, or one of {', '.join(KINDS)}"
            )
        chosen |= found
    return frozenset(chosen)


def _kind(net: nn.Module, tensor: str) -> str | None:
    if is_step_size(tensor):
        return STEP
    holder = net.get_submodule(tensor.rpartition(".")[0])
    return next((kind for kind, layer in LAYERS.items() if isinstance(holder, layer)), None)
