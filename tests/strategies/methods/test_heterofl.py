"""HeteroFL as a whole: averaged classifier rows, and levels that are drawn each round."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from flwr.app import Message
from torch import Tensor

from models.loading import form_of
from models.slicing import Slice
from models.task import Task
from protocol.arrays import pack
from protocol.records import read_slice
from protocol.reports import Trained
from protocol.work import Work
from server_app.building import strategy_of
from server_app.config.composing import ConfigError, compose
from strategies.aggregation.nested_mean import NestedMean
from strategies.aggregation.update import RefusedUpdateError, Update
from strategies.assignment import drawn_level
from strategies.methods.heterofl import HeteroFL, OwnClasses
from tests.support.federations import SMALL, Federate, federate_in
from tests.support.grids import InProcessGrid

CLASSIFIER = ("linear.weight", "linear.bias")


@pytest.fixture
def federate(tmp_path: Path) -> Federate:
    return federate_in(tmp_path)


def heterofl(overrides: str = "") -> HeteroFL:
    strategy = strategy_of(compose(f"{SMALL} {overrides}"))
    assert isinstance(strategy, HeteroFL)
    return strategy


def update_of(strategy: HeteroFL, level: int, value: float) -> Update:
    """Return an update of a level in which all values are the same."""
    submodel = strategy.submodels.at(strategy.levels[level - 1])
    state = {
        name: torch.full(tensor.shape, value, dtype=tensor.dtype)
        for name, tensor in submodel.form.items()
    }
    return Update(state, submodel.map, slice=submodel.level.slice)


def counted(strategy: HeteroFL, level: int, value: float, *classes: int) -> Update:
    """Return the part of an update that counts, of a client that has these classes."""
    update = replace(update_of(strategy, level, value), classes=classes)
    return OwnClasses(NestedMean(), strategy.federation.task).counted(update)


def average(strategy: HeteroFL, *updates: tuple[int, float, tuple[int, ...]]) -> dict[str, Tensor]:
    mean = strategy.aggregator()
    for level, value, classes in updates:
        mean.add(replace(update_of(strategy, level, value), classes=classes))
    return mean.result(strategy.state)


@pytest.mark.parametrize(
    ("model", "names"),
    [
        ("resnet20", {"linear.weight", "linear.bias"}),
        ("efficientnet_b4", {"classifier.1.weight", "classifier.1.bias"}),
        ("bert-tiny", {"classifier.weight", "classifier.bias"}),
    ],
)
def test_a_networks_class_rows_are_its_classifiers(model: str, names: set[str]) -> None:
    assert Task(model).class_rows(Slice(width=0.5)) == names


def test_early_exits_have_class_rows_too() -> None:
    rows = Task("resnet20", options=(("head", "pool"),)).class_rows(Slice(exits=(3, 9)))
    assert rows == {"exits.3.fc.weight", "exits.3.fc.bias", *CLASSIFIER}


def test_a_row_is_the_mean_over_the_clients_that_have_its_class() -> None:
    strategy = heterofl()
    found = average(strategy, (4, 1.0, (0, 1)), (4, 4.0, (1, 2)))["linear.bias"]
    first = strategy.state["linear.bias"]
    assert found[:3].tolist() == [1.0, 2.5, 4.0]
    assert torch.equal(found[3:], first[3:])  # nobody has these: they stay


def test_a_row_of_a_narrow_client_counts_where_it_reaches() -> None:
    strategy = heterofl()
    found = average(strategy, (1, 1.0, (0,)), (4, 3.0, (0, 5)))["linear.weight"]
    narrow = strategy.submodels.at(strategy.levels[0]).form["linear.weight"].shape[1]
    assert 0 < narrow < found.shape[1]
    assert (found[0, :narrow] == 2.0).all()
    assert (found[0, narrow:] == 3.0).all()
    assert (found[5] == 3.0).all()
    others = [row for row in range(10) if row not in (0, 5)]
    assert torch.equal(found[others], strategy.state["linear.weight"][others])


def test_other_tensors_count_whatever_classes_a_client_has() -> None:
    strategy = heterofl()
    found = average(strategy, (4, 1.0, (0,)), (4, 4.0, (9,)))
    assert all((found[name] == 2.5).all() for name in found if name not in CLASSIFIER)


def test_a_client_with_all_classes_counts_whole() -> None:
    strategy = heterofl()
    update = counted(strategy, 2, 1.0, *range(10))
    assert update.state.keys() == update.map.regions.keys()
    assert len(update.state["linear.bias"]) == 10


def test_clients_of_the_same_classes_share_a_map() -> None:
    strategy = heterofl()
    one, two = (counted(strategy, 2, value, 1, 3) for value in (1.0, 2.0))
    assert one.map is two.map


def test_rows_count_for_all_where_the_setting_is_off() -> None:
    strategy = heterofl("strategy.own_classes=false")
    assert isinstance(strategy.aggregator(), NestedMean)


@pytest.mark.parametrize("classes", [(), (3, 10)])
def test_classes_that_there_are_not_are_refused(classes: tuple[int, ...]) -> None:
    strategy = heterofl()
    with pytest.raises(RefusedUpdateError, match=r"classes: .*expected some of 0 to 9"):
        counted(strategy, 1, 1.0, *classes)


def test_a_round_averages_rows_over_those_who_have_the_class(federate: Federate) -> None:
    """Each client says its own classes, and the round's mean is of what each one sent."""
    sent: dict[int, tuple[Trained, Tensor]] = {}

    def keep(client: int, message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "train":
            rows = torch.full((10,), float(client + 1))
            reply.content["arrays"] = pack(_unpacked(message, reply) | {"linear.bias": rows})
            sent[client] = (Trained.read(reply.content), rows)
        return reply

    skewed = "dataset.partition=classes dataset.classes_per_client=3 rounds=1"
    strategy, _ = federate(skewed, InProcessGrid(4, keep))
    start = strategy_of(compose(f"{SMALL} {skewed}")).state["linear.bias"]
    for label in range(10):
        owners = [client + 1 for client, (said, _) in sent.items() if label in (said.classes or ())]
        expected = sum(owners) / len(owners) if owners else float(start[label])
        assert float(strategy.state["linear.bias"][label]) == pytest.approx(expected)
    assert all(len(said.classes or ()) == 3 for said, _ in sent.values())


def _unpacked(message: Message, reply: Message) -> dict[str, Tensor]:
    work = Work.read(message.content)
    return read_slice(reply.content, form_of(work.task, work.slice))


def test_clients_that_have_all_classes_train_as_if_the_setting_were_off(federate: Federate) -> None:
    more, said = "rounds=1 dataset.max_train=800", []

    def listen(client: int, message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "train":
            said.append(Trained.read(reply.content).classes)
        return reply

    on, _ = federate(more, InProcessGrid(4, listen))
    off, _ = federate(f"{more} strategy.own_classes=false")
    assert said == [tuple(range(10))] * 4
    assert all(torch.equal(on.state[name], off.state[name]) for name in on.state)


def test_dynamic_draws_each_clients_level_in_each_round(federate: Federate) -> None:
    grid = InProcessGrid(4)
    strategy, lines = federate("strategy.dynamic=true rounds=6", grid)
    works = [Work.read(m.content) for m in grid.sent if m.metadata.message_type == "train"]
    slices = {level.slice: level.number for level in strategy.levels}
    by_round = [[slices[w.slice] for w in works if w.round == n] for n in range(1, 7)]
    assert len({tuple(levels) for levels in by_round}) > 1
    assert {level for levels in by_round for level in levels} == {1, 2, 3, 4}
    replied = [{n: part["replied"] for n, part in line["slices"].items()} for line in lines]
    assert replied == [dict(Counter(map(str, sorted(levels)))) for levels in by_round]


def test_dynamic_levels_are_the_same_in_a_resumed_run(federate: Federate, tmp_path: Path) -> None:
    dynamic = "strategy.dynamic=true rounds=3 checkpoint.keep=3"
    straight, _ = federate(f"{dynamic} name=straight")
    half = tmp_path / "straight" / "checkpoints" / "round-000001.safetensors"
    resumed, _ = federate(f"resume={half}")
    assert all(torch.equal(straight.state[name], resumed.state[name]) for name in straight.state)


def test_dynamic_draws_levels_as_often_as_the_fleet_has_them() -> None:
    weights = dict(zip(heterofl().levels, (3.0, 0.0, 1.0), strict=False))
    counts = Counter(drawn_level(weights, 0, number, 5).number for number in range(2000))
    assert counts[2] == 0
    assert 1400 < counts[1] < 1600


def test_levels_are_not_drawn_in_two_ways() -> None:
    with pytest.raises(ConfigError, match=r"dynamic draws from all levels, but fleet.spread is 2"):
        heterofl("strategy.dynamic=true fleet.spread=2")
