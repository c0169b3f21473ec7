"""Settings made in Python have the values of conf/: neither may change without the other."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from pkgutil import resolve_name
from typing import Any

import pytest

from server_app.config.choices import choices
from server_app.config.composing import compose
from strategies.aggregation.aggregators import AGGREGATORS, AggregationConfig
from strategies.registry import METHODS

OF_THE_CHOICE = {"model.options", "aggregation.options"}
"""Options of the network or the rule that was chosen, not of every run."""
OF_THE_PAPER = {"distillation.steps"}
"""Defaults that are a paper's, while the method's file asks for less work."""


def differing(settings: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield each field that has another default than the value here, with both."""
    for field in fields(settings):
        value, key = getattr(settings, field.name), f"{path}{field.name}"
        default = field.default if field.default_factory is MISSING else field.default_factory()
        if default is MISSING or key in OF_THE_CHOICE | OF_THE_PAPER:
            continue
        if is_dataclass(value):
            yield from differing(value, f"{key}.")
        elif value != default:
            yield key, default, value


def test_a_federation_made_in_python_is_the_one_that_nestfl_run_composes() -> None:
    assert list(differing(compose())) == []


@pytest.mark.parametrize("method", METHODS)
def test_a_method_s_settings_have_the_values_of_its_file(method: str) -> None:
    fleet = ["fleet=cis_7"] if method == "serving_rate" else []
    settings = compose([f"strategy={method}", *fleet]).strategy
    ways = set(getattr(settings, "ways", ()))  # the file chooses one, from the fleet's tiers
    assert [found for found in differing(settings) if found[0] not in ways] == []


@pytest.mark.parametrize("rule", choices("aggregation"))
def test_an_aggregation_rule_s_parameters_have_the_values_of_its_file(rule: str) -> None:
    aggregation = compose([f"aggregation={rule}"]).aggregation
    parameters = inspect.signature(resolve_name(AGGREGATORS[aggregation.name])).parameters
    defaults = {name: parameter.default for name, parameter in parameters.items()}
    if "inner" in defaults:
        assert defaults["inner"] is None
        defaults["inner"] = AggregationConfig().name
    assert aggregation.options == defaults
