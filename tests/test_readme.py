"""The README's examples do what it says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from models import Slice, build, extract, slice_map
from server_app import app as server
from server_app.config import compose
from strategies.aggregation import NestedMean
from strategies.registry import STRATEGIES
from tests.grids import InProcessGrid

README = (Path(__file__).parents[1] / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_first_example_runs_and_changes_nothing_untrained() -> None:
    names = {"images": torch.randn(2, 3, 16, 16)}
    exec(EXAMPLES[0], names)
    assert names["early"].shape == (2, 10)


def test_a_users_own_strategy_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {}
    exec(EXAMPLES[2], names)
    monkeypatch.setitem(STRATEGIES, "rolling", names["Rolling"])
    config = compose(
        f"strategy.name=rolling model.norm=bn fleet=small rounds=2 train.epochs=1 "
        f"dataset.max_train=120 dataset.max_test=40 output={tmp_path} name=rolling"
    )
    federated = server.run(InProcessGrid(4), config)
    assert type(federated).__name__ == "Rolling"
    assert federated.window_of(0).seed == 2
    assert json.loads((tmp_path / "rolling" / "summary.json").read_text())["rounds"] == 2


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
