"""The README's examples do what it says."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from models import Slice, build, extract, registry, slice_map
from server_app import app as server
from server_app import config as settings
from server_app.config import compose
from strategies.aggregation import NestedMean
from strategies.registry import STRATEGIES
from tests.grids import InProcessGrid

README = (Path(__file__).parents[1] / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_first_example_runs_and_changes_nothing_untrained() -> None:
    names: dict[str, Any] = {"images": torch.randn(2, 3, 16, 16)}
    built, averaged = EXAMPLES[0].split("\n\nwhere = ")
    exec(built, names)
    before = {name: tensor.clone() for name, tensor in names["full"].state_dict().items()}
    exec(f"where = {averaged}", names)
    assert names["early"].shape == (2, 10)
    after = names["full"].state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


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


@pytest.fixture
def twin(monkeypatch: pytest.MonkeyPatch) -> None:
    """The README's own network, registered for as long as the test takes."""
    monkeypatch.setattr("models.registry._FAMILIES", dict(registry._FAMILIES))
    exec(EXAMPLES[1], {})


@pytest.mark.usefixtures("twin")
def test_a_users_own_network_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "CONF", _with_a_file_for_twin(tmp_path / "conf"))
    command = re.findall(r"`nestfl run (model=twin[^`]*)`", README)
    config = compose(
        f"{command[0]} fleet=small rounds=1 train.epochs=1 dataset.max_train=120 "
        f"dataset.max_test=40 output={tmp_path} name=run"
    )
    untrained = STRATEGIES["heterofl"](server.federation(config), lambda net: None)  # type: ignore[arg-type,return-value]
    before = {name: tensor.clone() for name, tensor in untrained.state.items()}
    federated = server.run(InProcessGrid(4), config)
    assert [level.split.width for level in federated.levels] == [0.35, 0.5, 0.7, 1.0]
    assert not any(torch.equal(federated.state[name], before[name]) for name in before)


def _with_a_file_for_twin(folder: Path) -> Path:
    shutil.copytree(settings.CONF, folder)
    (folder / "model" / "twin.yaml").write_text("name: twin\n")
    return folder


@pytest.mark.usefixtures("twin")
def test_a_users_own_network_is_sliced_and_averaged() -> None:
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
