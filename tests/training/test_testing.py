"""Evaluation on a client: all examples at each exit, and the statistics of static batch norm."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from data.catalog import IMAGES
from data.examples import ImageData
from models import SlicedNetwork
from models.layers import StaticBatchNorm2d
from tests.support.toy_networks import same, state_of
from tests.support.toy_training import CPU, EXITS, QUARTER, digits, resnet
from training.testing import evaluate, evaluation_batches, gather_statistics

pytestmark = pytest.mark.usefixtures("one_thread")


class Stubborn(SlicedNetwork):
    """Answers class 0 at its first exit and class 1 at its second, whatever it sees."""

    def forward(self, x: Tensor) -> list[Tensor]:
        return [torch.tensor([answer] * len(x)) for answer in ([2.0, 0.0], [0.0, 1.0])]


# Evaluation


def test_each_exit_has_its_own_numbers() -> None:
    labels = torch.tensor([0] * 7 + [1] * 3)
    data = replace(digits(10), labels=labels)
    first, second = evaluate(Stubborn(), data, CPU)
    assert (first.accuracy, second.accuracy) == pytest.approx((0.7, 0.3))
    assert (first.examples, second.examples) == (10, 10)
    right, wrong = math.log(1 + math.exp(-2)), math.log(1 + math.exp(2))
    assert first.loss == pytest.approx(0.7 * right + 0.3 * wrong)
    right, wrong = math.log(1 + math.exp(-1)), math.log(1 + math.exp(1))
    assert second.loss == pytest.approx(0.3 * right + 0.7 * wrong)


def test_evaluation_is_of_all_examples_and_changes_nothing() -> None:
    net, data = resnet(EXITS), digits(300)
    before = state_of(net)
    reports = evaluate(net, data, CPU)
    assert reports == evaluate(net, data, CPU)
    assert [report.examples for report in reports] == [300, 300]
    assert same(before, state_of(net))


def test_without_examples_there_is_nothing_to_report() -> None:
    assert evaluate(Stubborn(), digits(0), CPU) == []


@pytest.mark.parametrize("examples", [1, 2, 256, 257, 513, 5000, 10_000, 76_801])
def test_evaluation_batches_hold_each_example_once_and_none_is_tiny(examples: int) -> None:
    number = torch.arange(examples)
    data = ImageData(torch.zeros(examples, 1, 1, 1).byte(), number, IMAGES["digits"])
    batches = [labels for _, labels in evaluation_batches(data)]
    sizes = [len(labels) for labels in batches]
    assert torch.equal(torch.cat(batches).sort().values, number)
    assert max(sizes) <= 256
    assert min(sizes) >= min(examples, 100)


# Static batch norm


def test_gathered_statistics_are_the_means_and_variances_of_what_is_normalised() -> None:
    net = resnet(QUARTER, norm="bn-static", scaler="train")
    data = digits(40)
    statistics, examples = gather_statistics(net, data, CPU)
    assert isinstance(net.conv1, nn.Conv2d)
    maps = net.conv1(next(data.batches(40))[0]).detach()  # not divided by the scaler: as at test
    torch.testing.assert_close(statistics["bn1.running_mean"], maps.mean((0, 2, 3)))
    torch.testing.assert_close(statistics["bn1.running_var"], maps.var((0, 2, 3)))
    assert examples == 40
    named = {name for name in net.state_dict() if name.endswith(("mean", "var", "tracked"))}
    assert statistics.keys() == named


def test_gathering_starts_anew_and_changes_nothing_in_the_network() -> None:
    net = resnet(QUARTER, norm="bn-static")
    before = state_of(net)
    gather_statistics(net, digits(40, seed=1), CPU)
    again, _ = gather_statistics(net, digits(40, seed=2), CPU)
    fresh, _ = gather_statistics(resnet(QUARTER, norm="bn-static"), digits(40, seed=2), CPU)
    assert same(again, fresh)
    assert same(state_of(net), before)
    norms = [module for module in net.modules() if isinstance(module, StaticBatchNorm2d)]
    assert norms
    assert not any(norm.gathering for norm in norms)


def test_gathering_needs_static_norms_and_examples() -> None:
    with pytest.raises(ValueError, match="no static batch norm"):
        gather_statistics(resnet(), digits(4), CPU)
    with pytest.raises(ValueError, match="1 examples are too few"):
        gather_statistics(resnet(norm="bn-static"), digits(1), CPU)
