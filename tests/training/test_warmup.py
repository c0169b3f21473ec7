"""The warm-up: rates rise step by step, through rounds, up to the schedule's."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from models import SlicedNetwork
from protocol.train_settings import TrainSettings
from tests.support.toy_networks import same, state_of
from tests.support.toy_training import CPU, digits, resnet
from training.devices import PlacedNetwork
from training.fitting import _batches, _steps_of_an_epoch, fit, warmed_up
from training.local_training import plain_loss

pytestmark = pytest.mark.usefixtures("one_thread")

PLAIN = replace(CPU, lr=0.1, momentum=0.0, weight_decay=0.0)


class Point(SlicedNetwork):
    """A single number, which a step of gradient 1 moves by the rate."""

    def __init__(self) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.zeros((), dtype=torch.float64))


def rates(settings: TrainSettings, examples: int, rounds: int = 1) -> list[list[float]]:
    """Return the learning rate of each step of each round."""
    found = []
    for number in range(1, rounds + 1):
        places: list[float] = []

        def slope(network: PlacedNetwork, inputs: Tensor, labels: Tensor) -> Tensor:
            place = network.module.get_parameter("place")
            places.append(float(place.detach()))  # noqa: B023  (it runs in this round alone)
            return place

        net = Point()
        fit(net, digits(examples), slope, settings, number, seed=0)
        places.append(float(net.place.detach()))
        found.append([before - after for before, after in pairwise(places)])
    return found


def test_a_step_s_rate_is_its_share_of_the_warm_up_until_the_schedule_s() -> None:
    (found,) = rates(replace(PLAIN, warmup=4, epochs=2), examples=24)
    assert found == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1, 0.1])


def test_a_warm_up_goes_on_from_round_to_round() -> None:
    found = rates(replace(PLAIN, warmup=10), examples=25, rounds=4)  # the 25th is left out
    assert found[0] == pytest.approx([0.01, 0.02, 0.03])
    assert found[1] == pytest.approx([0.04, 0.05, 0.06])
    assert found[2] == pytest.approx([0.07, 0.08, 0.09])
    assert found[3] == pytest.approx([0.1, 0.1, 0.1])


def test_a_warm_up_rises_to_what_the_schedule_says_of_the_round() -> None:
    falling = replace(PLAIN, warmup=4, schedule="step", milestones=(2,), gamma=0.5)
    assert rates(falling, examples=16, rounds=3) == [
        pytest.approx([0.025, 0.05]),
        pytest.approx([0.0375, 0.05]),
        pytest.approx([0.05, 0.05]),
    ]


@pytest.mark.parametrize(
    ("warmup", "number"), [(1, 1), (3, 2)], ids=["of one step", "over before the round"]
)
def test_without_a_warm_up_weights_are_those_after_one_bit_for_bit(
    warmup: int, number: int
) -> None:
    """That those are of torch's own SGD is `test_fitting`'s."""
    warm, plain = resnet(), resnet()
    fit(warm, digits(24), plain_loss, replace(CPU, warmup=warmup), number, seed=0)
    fit(plain, digits(24), plain_loss, CPU, number, seed=0)
    assert same(state_of(warm), state_of(plain))


def test_without_a_warm_up_every_step_has_its_whole_rate() -> None:
    assert [warmed_up(CPU, step) for step in (1, 2, 500)] == [1.0, 1.0, 1.0]


@given(examples=st.integers(1, 40), size=st.integers(1, 12))
def test_an_epoch_s_steps_are_the_batches_that_run(examples: int, size: int) -> None:
    settings = replace(CPU, batch_size=size)
    run = list(_batches(digits(examples), settings, torch.Generator().manual_seed(0)))
    assert _steps_of_an_epoch(examples, settings) == len(run)


def test_a_warm_up_of_less_than_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="warmup is -1: expected 0 or more"):
        TrainSettings(warmup=-1)
