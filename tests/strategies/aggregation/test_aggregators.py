"""Properties of each aggregator that a config can choose."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from models import Window, slice_map
from strategies.aggregation.aggregators import AGGREGATORS, AggregationConfig
from strategies.aggregation.update import Update

FULL = nn.Linear(4, 4)
ROLLED = slice_map(FULL, nn.Linear(4, 2), Window("rolling", 3))  # rows 3 and 0
START = {"weight": torch.ones(4, 4), "bias": torch.ones(4), "other": torch.zeros(3)}


@pytest.mark.parametrize("name", AGGREGATORS)
@pytest.mark.parametrize("before", [float("nan"), -0.0, 0.1])
def test_entries_that_nobody_held_are_those_of_before_even_where_these_are_no_numbers(
    name: str, before: float
) -> None:
    aggregator = AggregationConfig(name).make()
    for value in (0.5, 0.75, 1.0):
        state = {"weight": torch.full((2, 4), value), "bias": torch.full((2,), value)}
        aggregator.add(Update(state, ROLLED, start=START))
    previous = {key: torch.full_like(tensor, before) for key, tensor in START.items()}
    after = aggregator.result(previous)
    for key, held in {"weight": [0, 3], "bias": [0, 3], "other": []}.items():
        untouched = [row for row in range(len(previous[key])) if row not in held]
        one, other = after[key][untouched], previous[key][untouched]
        assert torch.equal(one.view(torch.int32), other.view(torch.int32))  # bit for bit
        assert after[key][held].isfinite().all()


@pytest.mark.parametrize("name", AGGREGATORS)
def test_a_round_without_replies_changes_nothing(name: str) -> None:
    after = AggregationConfig(name).make().result(START)
    assert all(torch.equal(after[key], START[key]) for key in START)
