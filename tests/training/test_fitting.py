"""Local training: numbers worked out by hand, equal for equal seeds, and no state left over."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from data.catalog import IMAGES
from models import Slice, SlicedNetwork
from protocol.train_settings import TrainSettings
from tests.support.toy_networks import same, state_of
from tests.support.toy_training import CPU, EXITS, QUARTER, digits, resnet
from training.devices import Placement
from training.fitting import SGD, fit, learning_rate, passed
from training.local_training import plain_loss
from training.shared_losses import cross_entropy
from training.testing import evaluate

pytestmark = pytest.mark.usefixtures("one_thread")

PLAIN = replace(CPU, momentum=0.0, weight_decay=0.0)


class Flat(SlicedNetwork):
    """One linear layer: all that a step by hand can follow."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> list[Tensor]:
        return [self.linear(x.flatten(1))]


class Dropping(Flat):
    """A layer that draws from the process's own chance."""

    def forward(self, x: Tensor) -> list[Tensor]:
        return [self.linear(F.dropout(x.flatten(1), 0.5, self.training))]


# Learning rates


def test_a_constant_rate_stays() -> None:
    assert [learning_rate(CPU, number) for number in (1, 500)] == [0.05, 0.05]


def test_a_step_rate_falls_from_its_milestones_on() -> None:
    scalefl = replace(CPU, lr=0.1, schedule="step", milestones=(100, 200), gamma=0.1)
    rates = [learning_rate(scalefl, number) for number in (1, 99, 100, 199, 200, 300)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001])


def test_a_cosine_rate_falls_from_full_towards_nothing() -> None:
    cosine = replace(CPU, lr=0.2, schedule="cosine", rounds=4)
    half = math.sqrt(0.5)
    rates = [learning_rate(cosine, number) for number in (1, 2, 3, 4, 9)]
    assert rates == pytest.approx([0.2, 0.1 * (1 + half), 0.1, 0.1 * (1 - half), 0.0])


def test_rounds_are_counted_from_one() -> None:
    with pytest.raises(ValueError, match="round is 0: expected at least 1"):
        learning_rate(CPU, 0)


# Settings


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epochs": 0}, "epochs is 0: expected at least 1"),
        ({"batch_size": -3}, "batch_size is -3: expected at least 1"),
        ({"lr": 0.0}, "lr is 0.0: expected a finite number above 0"),
        ({"lr": math.nan}, "lr is nan: expected a finite number above 0"),
        ({"weight_decay": math.inf}, "weight_decay is inf: expected a finite number, 0 or more"),
        ({"clip": -1.0}, "clip is -1.0: expected a finite number, 0 or more"),
        ({"momentum": 1.0}, "momentum is 1.0: expected 0 or more and less than 1"),
        ({"nesterov": True, "momentum": 0.0}, "nesterov is True: expected momentum above 0"),
        ({"optimizer": "lion"}, "optimizer is 'lion': expected one of sgd, adamw"),
        ({"schedule": "warm"}, "schedule is 'warm': expected one of constant, step, cosine"),
        ({"schedule": "step"}, r"milestones is \(\): expected at least one for schedule step"),
        ({"milestones": (5, 5)}, r"milestones is \(5, 5\): expected rounds in ascending order"),
        ({"device": "tpu"}, "device is 'tpu': expected one of auto, cpu, cuda, mps"),
        ({"precision": "fp8"}, "precision is 'fp8': expected one of auto, fp32, bf16, fp16"),
        ({"channels_last": "yes"}, "channels_last is 'yes': expected one of auto, on, off"),
    ],
)
def test_wrong_settings_are_named_with_what_was_expected(
    wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        TrainSettings(**wrong)


# Steps


def test_steps_are_those_of_sgd_by_hand() -> None:
    net, data = Flat(), digits(6)
    settings = replace(CPU, batch_size=6, epochs=2, momentum=0.9, weight_decay=0.01)
    weight, bias = (p.detach().clone() for p in net.parameters())
    images, labels = next(data.batches(6))
    speed_w, speed_b, losses = torch.zeros_like(weight), torch.zeros_like(bias), []
    for _ in range(2):
        x = images.flatten(1)
        share = (x @ weight.T + bias).softmax(1)
        losses.append(-share[range(6), labels].log().mean())
        error = (share - F.one_hot(labels, 10)) / 6
        speed_w = 0.9 * speed_w + error.T @ x + 0.01 * weight
        speed_b = 0.9 * speed_b + error.sum(0) + 0.01 * bias
        weight, bias = weight - 0.05 * speed_w, bias - 0.05 * speed_b

    report = fit(net, data, plain_loss, settings, round=1, seed=0)

    torch.testing.assert_close(net.linear.weight.detach(), weight, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(net.linear.bias.detach(), bias, rtol=1e-4, atol=1e-6)
    assert report.loss == pytest.approx(float(sum(losses)) / 2, rel=1e-5)
    assert (report.examples, report.batches) == (6, 2)
    assert report.seconds > 0


@pytest.mark.parametrize(
    ("chosen", "torchs"),
    [
        ({}, partial(torch.optim.SGD, momentum=0.9, weight_decay=5e-4, foreach=True)),
        (
            {"nesterov": True},
            partial(torch.optim.SGD, momentum=0.9, weight_decay=5e-4, nesterov=True, foreach=True),
        ),
        (
            {"optimizer": "adamw", "weight_decay": 0.1},
            partial(torch.optim.AdamW, weight_decay=0.1),
        ),
    ],
    ids=["sgd", "nesterov", "adamw"],
)
def test_training_equals_a_plain_loop_with_torchs_optimiser(
    chosen: dict[str, Any], torchs: Callable[..., torch.optim.Optimizer]
) -> None:
    settings = replace(CPU, epochs=2, channels_last="off", **chosen)
    ours, theirs, data = resnet(), resnet(), digits(20)
    optimiser = torchs(theirs.parameters(), lr=0.05)
    order = torch.Generator().manual_seed(3)
    theirs.train()
    for _ in range(2):
        for images, labels in data.batches(8, shuffle=True, generator=order):
            optimiser.zero_grad()
            F.cross_entropy(theirs(images)[-1], labels).backward()
            optimiser.step()
    fit(ours, data, plain_loss, settings, round=1, seed=3)
    assert same(state_of(ours), state_of(theirs))


def test_the_round_sets_the_step() -> None:
    settings = replace(PLAIN, batch_size=6, schedule="step", milestones=(2,), gamma=0.5)
    moved = []
    for number in (1, 2):
        net = Flat()
        before = net.linear.weight.detach().clone()
        fit(net, digits(6), plain_loss, settings, number, seed=0)
        moved.append(float((net.linear.weight.detach() - before).norm()))
    assert moved[1] == pytest.approx(moved[0] / 2, rel=1e-4)


@pytest.mark.parametrize(("steps", "epochs"), [(3, 1), (6, 2), (4, 2)])
def test_steps_go_over_the_data_again_and_again(steps: int, epochs: int) -> None:
    """Of 20 examples in batches of 8, three steps are an epoch."""
    data, states = digits(20), []
    for settings in (replace(CPU, steps=steps, epochs=7), replace(CPU, epochs=epochs)):
        net = Flat()
        report = fit(net, data, plain_loss, settings, 1, seed=1)
        states.append(net.state_dict())
        assert report.batches == (steps if settings.steps else 3 * epochs)
    assert same(*states) == (steps == 3 * epochs)


@pytest.mark.parametrize(("steps", "seen"), [(None, 40), (1, 8), (3, 20), (4, 28), (6, 40)])
def test_examples_that_pass_through_the_network_are_counted(steps: int | None, seen: int) -> None:
    assert passed(20, replace(CPU, epochs=2, steps=steps)) == seen


def test_clipping_bounds_the_norm_of_a_step() -> None:
    moved = {}
    for clip in (0.0, 0.01, 1e6):
        net = Flat()
        before = net.linear.weight.detach().clone(), net.linear.bias.detach().clone()
        settings = replace(PLAIN, batch_size=6, lr=1.0, clip=clip)
        fit(net, digits(6), plain_loss, settings, round=1, seed=0)
        after = net.linear.weight.detach(), net.linear.bias.detach()
        changes = (new - old for new, old in zip(after, before, strict=True))
        moved[clip] = math.hypot(*(float(change.norm()) for change in changes))
    assert moved[0.01] == pytest.approx(0.01, rel=1e-3)
    assert moved[0.0] == pytest.approx(moved[1e6], rel=1e-4)
    assert moved[0.0] > 0.1


def test_a_client_without_examples_says_so() -> None:
    with pytest.raises(ValueError, match="no training examples"):
        fit(Flat(), digits(0), plain_loss, CPU, round=1, seed=0)


@pytest.mark.parametrize(
    ("examples", "batch_size", "batches"), [(5, 2, 2), (1, 8, 1), (3, 1, 3), (9, 8, 1)]
)
def test_batches_of_one_do_not_break_batch_norm(
    examples: int, batch_size: int, batches: int
) -> None:
    net = resnet(Slice(width=1 / 16), "resnet18")  # on 8x8 pixels its last maps are 1x1
    settings = replace(CPU, batch_size=batch_size)
    report = fit(net, digits(examples), plain_loss, settings, round=1, seed=0)
    assert (report.batches, report.examples) == (batches, examples)
    assert math.isfinite(report.loss)
    assert all(tensor.isfinite().all() for tensor in net.state_dict().values())


# The same again


@pytest.mark.parametrize("augment", [False, True])
def test_the_same_seed_gives_the_same_weights_whatever_ran_before(augment: bool) -> None:
    settings = replace(CPU, epochs=2, augment=augment)
    data = replace(digits(20), facts=replace(IMAGES["digits"], crop_padding=1, flip=True))
    first, again, other = resnet(EXITS), resnet(EXITS), resnet(EXITS)
    fit(first, data, plain_loss, settings, round=1, seed=7)
    fit(resnet(), digits(9), plain_loss, CPU, round=1, seed=1)
    torch.rand(5)
    fit(again, data, plain_loss, settings, round=1, seed=7)
    fit(other, data, plain_loss, settings, round=1, seed=8)
    assert same(state_of(first), state_of(again))
    assert not same(state_of(first), state_of(other))


def test_dropout_draws_from_the_seed_and_leaves_the_process_its_own_chance() -> None:
    torch.manual_seed(5)
    chance = torch.get_rng_state()
    first, again = Dropping(), Dropping()
    fit(first, digits(20), plain_loss, CPU, round=1, seed=7)
    assert torch.equal(torch.get_rng_state(), chance)
    torch.rand(5)
    fit(again, digits(20), plain_loss, CPU, round=1, seed=7)
    assert same(state_of(first), state_of(again))


# Formats


def test_bf16_trains_on_the_cpu_and_keeps_float32_weights() -> None:
    half, full = resnet(), resnet()
    settings = replace(CPU, precision="bf16")
    report = fit(half, digits(16), plain_loss, settings, round=1, seed=0)
    exact = fit(full, digits(16), plain_loss, CPU, round=1, seed=0)
    assert report.loss == pytest.approx(exact.loss, rel=0.05)
    assert not same(state_of(half), state_of(full))
    assert {tensor.dtype for tensor in half.state_dict().values()} == {torch.float32}
    assert math.isfinite(evaluate(half, digits(16), settings)[-1].loss)


def test_fp16_is_refused_on_the_cpu() -> None:
    settings = replace(CPU, precision="fp16")
    with pytest.raises(ValueError, match="fp16 needs CUDA, not cpu: choose auto, fp32, bf16"):
        fit(Flat(), digits(4), plain_loss, settings, round=1, seed=0)


def test_a_scaled_loss_makes_the_same_step_and_an_overflow_makes_none() -> None:
    """The behaviour of fp16 on CUDA, tried with torch's scaler on the CPU."""
    scaled, plain = Flat(), Flat()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimiser: Any = SGD(scaled.parameters(), 0.05, CPU)
    images, labels = next(digits(8).batches(8))

    def step(factor: float) -> None:
        optimiser.zero_grad()
        loss = cross_entropy(scaled(images), labels) * factor
        scaler.scale(loss).backward()
        scaler.step(optimiser)
        scaler.update()

    step(1.0)
    fit(plain, digits(8), plain_loss, CPU, round=1, seed=0)
    moved = state_of(scaled)
    torch.testing.assert_close(moved, state_of(plain))
    step(math.inf)
    assert same(state_of(scaled), moved)


def test_channels_last_changes_speed_not_results() -> None:
    settings = replace(PLAIN, batch_size=16)
    states = []
    for layout in ("on", "off"):
        net = resnet(Slice())
        chosen = replace(settings, channels_last=layout)
        fit(net, digits(16), plain_loss, chosen, round=1, seed=0)
        assert all(tensor.is_contiguous() for tensor in net.state_dict().values())
        states.append(state_of(net))
    for name, tensor in states[0].items():
        torch.testing.assert_close(tensor, states[1][name], rtol=1e-3, atol=1e-4)


def test_channels_last_is_kept_from_slices_that_onednn_corrupts_memory_with() -> None:
    assert Placement.of(CPU, resnet(Slice())).layout == torch.channels_last
    assert Placement.of(CPU, resnet(QUARTER)).layout == torch.contiguous_format
    with pytest.raises(ValueError, match="channels_last is 'on': expected 'auto' or 'off'"):
        Placement.of(replace(CPU, channels_last="on"), resnet(QUARTER))
