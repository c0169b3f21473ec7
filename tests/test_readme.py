"""The README's examples do what it says."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from models import Slice, build, extract, slice_map
from strategies.aggregation import NestedMean

README = (Path(__file__).parents[1] / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_first_example_runs_and_changes_nothing_untrained() -> None:
    names = {"images": torch.randn(2, 3, 16, 16)}
    exec(EXAMPLES[0], names)
    assert names["early"].shape == (2, 10)


def test_a_users_own_network_is_sliced_and_averaged() -> None:
    exec(EXAMPLES[1], {})
    full = build("twin", 10)
    half = build("twin", 10, slice=Slice(width=0.5))
    where = slice_map(full, half)
    cut = extract(full.state_dict(), where)
    joined = full.state_dict()["fc.weight"]
    assert torch.equal(cut["fc.weight"], torch.cat((joined[:, :8], joined[:, 16:32]), 1))
    mean = NestedMean()
    mean.add(cut, where)
    after = mean.result(full.state_dict())
    assert all(torch.equal(after[name], tensor) for name, tensor in full.state_dict().items())
