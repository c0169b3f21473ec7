"""The aggregators by name, as conf/aggregation chooses them.

A new one is a class with `add` and `result`, and a line here. Its constructor's parameters are its
settings; `inner` is another aggregator, `bounds` has one number for each level.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Any, Protocol

from torch import Tensor

from models.slicing import State
from strategies.aggregation.update import Update

AGGREGATORS = {
    "nested-mean": "strategies.aggregation.nested_mean:NestedMean",
    "norm-bound": "strategies.aggregation.norm_bounds:NormBound",
    "clipped": "strategies.aggregation.norm_bounds:clipped",
    "trimmed-mean": "strategies.aggregation.trimmed_mean:TrimmedMean",
    "median": "strategies.aggregation.trimmed_mean:Median",
}
"""Module and class of each aggregator; imported on first use, since clients need none of them."""
NO_MEANS = ("clipped", "trimmed-mean", "median")
"""Aggregators whose result is not the mean of the clients' updates."""


class Aggregator(Protocol):
    """Folds the updates of one round; their order does not change a bit of the result.

    An aggregator may wrap an inner one: it changes or refuses an update before the inner one's
    `add`.
    """

    def add(self, update: Update) -> None:
        """Fold in one client's update, or raise `RefusedUpdateError` and change nothing."""

    def result(self, previous: State) -> dict[str, Tensor]:
        """Return the new global state, from the state that the round began with.

        An entry that no client held keeps the exact value of `previous`, also NaN. Other entries of
        `previous` are read only to see whether they have changed.
        """


Wrap = Callable[[Any], Any]
"""Wraps an aggregator in another one."""


@dataclass(frozen=True)
class AggregationConfig:
    """An aggregator's name, and its settings."""

    name: str = "nested-mean"
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name not in AGGREGATORS:
            choices = ", ".join(sorted(AGGREGATORS))
            raise ValueError(f"unknown name {self.name!r}; choose from {choices}")

    def check(self) -> None:
        """Raise `ValueError` for settings that the aggregator does not take."""
        made = self._aggregator()
        taken = list(inspect.signature(made).parameters)
        for option in self.options:
            if option not in taken:
                choices = ", ".join(taken) or "none"
                raise ValueError(f"no key {option!r} of {self.name}; choose from {choices}")
        try:
            if (inner := self.inner) is not None:
                inner.check()
        except ValueError as error:
            raise ValueError(f"inner: {error}") from error
        self.make()

    def check_levels(self, levels: int) -> None:
        """Raise `ValueError` if `bounds` has another length than the number of levels."""
        bounds = self.options.get("bounds")
        if bounds and len(bounds) != levels:
            raise ValueError(f"bounds are {list(bounds)}: expected one for each of {levels} levels")
        if self.inner is not None:
            self.inner.check_levels(levels)

    def make(self, wrapped: Wrap = lambda innermost: innermost) -> Aggregator:
        """Return a new aggregator for one round.

        Wrappers from the config, such as a bound, see updates as clients sent them. `wrapped` adds
        the method's own wrapper, directly around the innermost aggregator.
        """
        made = self._aggregator()
        if "inner" not in inspect.signature(made).parameters:
            found: Aggregator = wrapped(made(**self.options))
            return found
        inner = self.inner or AggregationConfig()
        return made(**{**self.options, "inner": inner.make(wrapped)})

    @property
    def inner(self) -> AggregationConfig | None:
        """The wrapped aggregator's config, given as a name, or as a name with settings."""
        given = self.options.get("inner")
        if given is None:
            return None
        settings = dict(given) if isinstance(given, Mapping) else {"name": given}
        return AggregationConfig(settings.pop("name", ""), settings)

    @property
    def innermost(self) -> AggregationConfig:
        """The config of the aggregator that all others wrap."""
        if "inner" not in inspect.signature(self._aggregator()).parameters:
            return self
        return (self.inner or AggregationConfig()).innermost

    @property
    def averages(self) -> bool:
        """True if the result is the mean of the accepted updates, as clients sent them."""
        inner = self.inner
        return self.name not in NO_MEANS and (inner is None or inner.averages)

    def _aggregator(self) -> Callable[..., Aggregator]:
        found: Callable[..., Aggregator] = resolve_name(AGGREGATORS[self.name])
        return found
