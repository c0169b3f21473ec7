"""FedFA's scalable aggregation (Algorithm 1): the layers of all clients are brought to one scale.

A layer of client c is multiplied by alpha = (mean of all clients' norms) / (c's norm), where a norm
is that of the weights without outliers. The mean is the same for all clients, so each reply is
divided by its own norm on arrival, and the result is multiplied by the mean at the end: one pass.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.slicing import Region, SliceMap, State
from strategies.aggregation.norm_bounds import Inner
from strategies.aggregation.spool import Spool
from strategies.aggregation.update import RefusedUpdateError, Update

log = logging.getLogger("flwr")  # the logger that `flwr log` shows

Reading = Literal["magnitude", "signed", "central"]
"""Weights that are not outliers: magnitudes up to the percentile, signed values up to the
percentile, or the central share."""
Scale = Literal["norm", "rms", "none"]
"""Measure that is made equal: a layer's L2 norm (the paper's), its root mean square, or none."""


@dataclass(frozen=True)
class LayerNorm95:
    """The norm of a layer's weights without outliers."""

    percentile: float = 95.0
    reading: Reading = "magnitude"
    scale: Scale = "norm"

    def of(self, tensor: Tensor) -> float:
        """Return the norm, in double precision."""
        values = tensor.detach().cpu().double().numpy().reshape(-1)
        inner = self._inner(values)
        size = math.sqrt(float(np.sum(inner * inner)))
        return size / math.sqrt(max(1, inner.size)) if self.scale == "rms" else size

    def _inner(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        if self.reading == "signed":
            return values[values <= float(np.percentile(values, self.percentile))]
        if self.reading == "magnitude":
            sizes = np.abs(values)
            return values[sizes <= float(np.percentile(sizes, self.percentile))]
        rest = (100 - self.percentile) / 2
        low, high = (float(np.percentile(values, place)) for place in (rest, 100 - rest))
        return values[(low <= values) & (values <= high)]


class ScaledByNorm:
    """Brings each update's layers to one scale before an inner aggregator averages them.

    Biases and norm layers (one axis) are not scaled, nor is a layer whose norm is 0. Entries that
    no client held keep their value.
    """

    def __init__(self, inner: Inner, start: State, norm: LayerNorm95, least: float = 0.0) -> None:
        """Scale by `norm`; refuse a layer below a share `least` of the norm it was sent with."""
        self.inner, self.norm, self.least = inner, norm, least
        self._start = start
        self._units: dict[str, float] = {}
        """Norm to which each layer is scaled while it is summed: about its own, so that no
        precision is lost."""
        self._norms: dict[str, list[float]] = defaultdict(list)
        self._sent_norms: dict[tuple[str, tuple[int, ...]], float] = {}
        self._as_they_are = Spool()
        """Updates of layers whose norm is 0, on disk: their scale is known at the end only."""

    def check(self, update: Update) -> None:
        """Raise `RefusedUpdateError` where `add` would, and change nothing."""
        update.check_form()
        self.inner.check(self._scaled(update, self._norms_of(update)))

    def add(self, update: Update) -> None:
        """Fold in one client's state, or raise `RefusedUpdateError` and change nothing."""
        update.check_form()
        norms = self._norms_of(update)
        self.inner.add(self._scaled(update, norms))
        for name, norm in norms.items():
            self._norms[update.map.regions[name].source].append(norm)
        if flat := {name for name, norm in norms.items() if norm == 0}:
            self._as_they_are.add(_without(update, update.state.keys() - flat))

    def result(self, previous: State) -> dict[str, Tensor]:
        """Return the new global state: sums of one scale, times the mean of the clients' norms."""
        means = {
            source: math.fsum(norms) / len(norms) / self._units.get(source, 1.0)
            for source, norms in self._norms.items()
        }
        for update in self._as_they_are.updates():
            for_one = {
                name: _times(tensor, 1 / (means[update.map.regions[name].source] or 1.0))
                for name, tensor in update.state.items()
            }
            try:
                self.inner.add(replace(update, state=for_one))
            except RefusedUpdateError as refusal:  # too late to refuse the client's reply
                log.warning("layers of client %s are left out: %s", update.client, refusal)
        # NaN marks entries that no client held: scaling would change a previous value.
        nobodys = {
            source: torch.full_like(previous[source], math.nan)
            for source, mean in means.items()
            if mean
        }
        found = self.inner.result({**previous, **nobodys})
        for source in nobodys:
            scaled = _times(found[source], means[source])
            found[source] = torch.where(scaled.isnan(), previous[source], scaled)
        return found

    def _scaled(self, update: Update, norms: Mapping[str, float]) -> Update:
        """Return an update divided by its own norms, without the layers whose norm is 0."""
        state = {
            name: _times(tensor, self._unit(update.map, name) / norms[name])
            if norms.get(name)
            else tensor
            for name, tensor in update.state.items()
        }
        flat = {name for name, norm in norms.items() if norm == 0}
        return _without(replace(update, state=state), flat)

    def _norms_of(self, update: Update) -> dict[str, float]:
        """Return the norms of an update's layers."""
        layers = {
            name: tensor
            for name, tensor in update.state.items()
            if tensor.ndim > 1 and tensor.is_floating_point() and self.norm.scale != "none"
        }
        # Grafted blocks share their tensors with the originals: each norm is computed once.
        distinct = {id(tensor): tensor for tensor in layers.values()}
        norms = {key: self.norm.of(tensor) for key, tensor in distinct.items()}
        found = {name: norms[id(tensor)] for name, tensor in layers.items()}
        self._check_norms(update, found)
        return found

    def _check_norms(self, update: Update, norms: Mapping[str, float]) -> None:
        for name, norm in norms.items() if self.least else ():
            region = update.map.regions[name]
            if 0 < norm < self.least * self._sent(region):
                raise RefusedUpdateError(
                    "scale",
                    f"{name} has a norm of {norm:g}, less than {self.least:g} of what it was sent "
                    "with (strategy.least_norm)",
                )

    def _sent(self, region: Region) -> float:
        """Return the norm of a part of the global state as it was sent."""
        key = region.source, region.shape
        if key not in self._sent_norms:
            self._sent_norms[key] = self.norm.of(region.of(self._start[region.source]))
        return self._sent_norms[key]

    def _unit(self, where: SliceMap, name: str) -> float:
        source = where.regions[name].source
        if source not in self._units:
            self._units[source] = self.norm.of(self._start[source]) or 1.0
        return self._units[source]


def _times(tensor: Tensor, factor: float) -> Tensor:
    return (tensor.double() * factor).to(tensor.dtype)


def _without(update: Update, names: AbstractSet[str]) -> Update:
    """Return an update without some of its tensors."""
    if not names:
        return update
    regions = {k: region for k, region in update.map.regions.items() if k not in names}
    state = {k: tensor for k, tensor in update.state.items() if k not in names}
    return replace(update, state=state, map=SliceMap(regions))
