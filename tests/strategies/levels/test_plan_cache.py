"""Plans are kept for the next run, if the network's code is known to be the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from models import Slice
from models.families import _FAMILIES, SlicedNetwork, family
from models.task import Task
from strategies.levels import cost as costs
from strategies.levels.cost import cost
from strategies.levels.planning import PlanError, search_splits

RATIOS = (0.5, 1.0)


def forget() -> None:
    """Clear all caches in memory, as in a new process."""
    for remembered in (costs.cost, costs._counted, costs.path_costs):
        remembered.cache_clear()


def test_a_plan_and_its_costs_are_found_once(
    cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget()
    task = Task("resnet20")
    first = search_splits(task, RATIOS), cost(task, Slice(0.5))
    forget()
    monkeypatch.setattr(Task, "build", None)  # a network that is built again raises
    assert (search_splits(task, RATIOS), cost(task, Slice(0.5))) == first
    with pytest.raises(TypeError):
        cost(task, Slice(0.25))
    forget()


def test_a_plan_that_cannot_be_made_is_not_kept(cache_folder: Path) -> None:
    for _ in range(2):
        with pytest.raises(PlanError, match="no split costs"):
            search_splits(Task("resnet20"), RATIOS, tolerance=0)


def test_of_a_network_from_elsewhere_nothing_is_kept(
    cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = family("resnet20")

    def elsewhere(num_classes: int, in_channels: int, slice: Slice) -> SlicedNetwork:
        return own.construct(num_classes, in_channels, slice)

    monkeypatch.setitem(_FAMILIES, "elsewhere", replace(own, construct=elsewhere))
    cost(Task("elsewhere"), Slice())
    assert not list(cache_folder.glob("cost-*"))


def test_without_a_cache_it_is_found_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("NESTFL_CACHE", str(tmp_path / "file"))
    forget()
    assert cost(Task("resnet20")).parameters > 0
