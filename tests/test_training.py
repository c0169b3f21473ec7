"""Local training: numbers worked out by hand, the same for the same seed, and nothing left over."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from client_app.devices import choose_device, free_memory, resident, set_threads
from client_app.evaluation import evaluation_batches, gather_statistics
from client_app.networks import load_network
from client_app.objectives import cross_entropy, masked_cross_entropy, objective, register
from client_app.placement import Placement
from client_app.probe import Probe, budget, probe
from client_app.sgd import SGD
from client_app.training import TrainSettings, evaluate, fit, learning_rate
from data import IMAGES, ImageData
from models import Slice, SlicedNetwork, Task, build
from models.layers import StaticBatchNorm2d
from tests.networks import state_of

CPU = TrainSettings(device="cpu", batch_size=8, lr=0.05)
PLAIN = replace(CPU, momentum=0.0, weight_decay=0.0)
DIGITS = Task("resnet20", 10, 1, 8)
QUARTER = Slice(width=0.25)
EXITS = Slice(width=0.25, exits=(3, 9))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """On a busy machine small networks spend their time waiting for a second thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def digits(count: int, seed: int = 0, classes: int = 10) -> ImageData:
    chance = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, 1, 8, 8), generator=chance, dtype=torch.uint8)
    labels = torch.randint(0, classes, (count,), generator=chance)
    return ImageData(images, labels, IMAGES["digits"])


def resnet(slice: Slice = QUARTER, name: str = "resnet20", **options: Any) -> SlicedNetwork:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build(name, 10, 1, slice, **options)


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


class Stubborn(SlicedNetwork):
    """Answers class 0 at its first exit and class 1 at its second, whatever it sees."""

    def forward(self, x: Tensor) -> list[Tensor]:
        return [torch.tensor([answer] * len(x)) for answer in ([2.0, 0.0], [0.0, 1.0])]


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


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


# Objectives


def test_cross_entropy_is_of_the_last_exit() -> None:
    logits = [torch.tensor([[9.0, 0.0]]), torch.tensor([[0.0, 1.0]])]
    loss = cross_entropy(logits, torch.tensor([0]))
    assert float(loss) == pytest.approx(math.log(1 + math.e))


def test_masked_cross_entropy_sets_absent_logits_to_zero() -> None:
    logits = torch.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
    present = torch.tensor([True, False, True])
    loss = masked_cross_entropy([logits], torch.tensor([2]), present=present)
    total = math.e + 1 + math.e**3
    assert loss.item() == pytest.approx(math.log(total) - 3)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert gradient[0].tolist() == pytest.approx([math.e / total, 0, math.e**3 / total - 1])


def test_an_objective_by_name_knows_the_classes_of_its_client() -> None:
    masked = objective("masked-cross-entropy", torch.tensor([0, 2, 2]), num_classes=3)
    loss = masked([torch.tensor([[1.0, 2.0, 3.0]])], torch.tensor([2]))
    assert float(loss) == pytest.approx(math.log(math.e + 1 + math.e**3) - 3)


def test_a_new_objective_is_one_function_with_settings() -> None:
    @register("weighted-exits")
    def weighted(logits: list[Tensor], labels: Tensor, *, share: float, power: int = 1) -> Tensor:
        return share**power * logits[0].sum()

    labels = torch.tensor([0])
    assert objective("weighted-exits", labels, 2, share=0.5)([torch.ones(1, 4)], labels) == 2
    with pytest.raises(ValueError, match="objective weighted-exits needs the setting 'share'"):
        objective("weighted-exits", labels, 2)
    with pytest.raises(ValueError, match=r"unknown setting 'beta'.*choose from power, share"):
        objective("weighted-exits", labels, 2, beta=1)


def test_an_unknown_objective_is_answered_with_the_choices() -> None:
    with pytest.raises(ValueError, match=r"unknown objective 'mse'; choose from cross-entropy, m"):
        objective("mse", torch.tensor([0]), 2)


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

    report = fit(net, data, cross_entropy, settings, round=1, seed=0)

    torch.testing.assert_close(net.linear.weight.detach(), weight, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(net.linear.bias.detach(), bias, rtol=1e-4, atol=1e-6)
    assert report.loss == pytest.approx(float(sum(losses)) / 2, rel=1e-5)
    assert (report.examples, report.batches) == (6, 2)
    assert report.seconds > 0


@pytest.mark.parametrize("nesterov", [False, True])
def test_training_equals_a_plain_loop_with_torchs_optimiser(nesterov: bool) -> None:
    settings = replace(CPU, nesterov=nesterov, epochs=2, channels_last="off")
    ours, theirs, data = resnet(), resnet(), digits(20)
    optimiser = torch.optim.SGD(
        theirs.parameters(), 0.05, 0.9, weight_decay=5e-4, nesterov=nesterov, foreach=True
    )
    order = torch.Generator().manual_seed(3)
    theirs.train()
    for _ in range(2):
        for images, labels in data.batches(8, shuffle=True, generator=order):
            optimiser.zero_grad()
            F.cross_entropy(theirs(images)[-1], labels).backward()
            optimiser.step()
    fit(ours, data, cross_entropy, settings, round=1, seed=3)
    assert same(state_of(ours), state_of(theirs))


def test_adamw_is_torchs() -> None:
    settings = replace(CPU, optimizer="adamw", weight_decay=0.1, epochs=2)
    ours, theirs, data = Flat(), Flat(), digits(20)
    optimiser = torch.optim.AdamW(theirs.parameters(), 0.05, weight_decay=0.1)
    order = torch.Generator().manual_seed(3)
    for _ in range(2):
        for images, labels in data.batches(8, shuffle=True, generator=order):
            optimiser.zero_grad()
            F.cross_entropy(theirs(images)[-1], labels).backward()
            optimiser.step()
    fit(ours, data, cross_entropy, settings, round=1, seed=3)
    assert same(state_of(ours), state_of(theirs))


def test_the_round_sets_the_step() -> None:
    settings = replace(PLAIN, batch_size=6, schedule="step", milestones=(2,), gamma=0.5)
    moved = []
    for number in (1, 2):
        net = Flat()
        before = net.linear.weight.detach().clone()
        fit(net, digits(6), cross_entropy, settings, number, seed=0)
        moved.append(float((net.linear.weight.detach() - before).norm()))
    assert moved[1] == pytest.approx(moved[0] / 2, rel=1e-4)


def test_clipping_bounds_the_norm_of_a_step() -> None:
    moved = {}
    for clip in (0.0, 0.01, 1e6):
        net = Flat()
        before = net.linear.weight.detach().clone(), net.linear.bias.detach().clone()
        settings = replace(PLAIN, batch_size=6, lr=1.0, clip=clip)
        fit(net, digits(6), cross_entropy, settings, round=1, seed=0)
        after = net.linear.weight.detach(), net.linear.bias.detach()
        changes = (new - old for new, old in zip(after, before, strict=True))
        moved[clip] = math.hypot(*(float(change.norm()) for change in changes))
    assert moved[0.01] == pytest.approx(0.01, rel=1e-3)
    assert moved[0.0] == pytest.approx(moved[1e6], rel=1e-4)
    assert moved[0.0] > 0.1


def test_a_client_without_examples_says_so() -> None:
    with pytest.raises(ValueError, match="no training examples"):
        fit(Flat(), digits(0), cross_entropy, CPU, round=1, seed=0)


@pytest.mark.parametrize(
    ("examples", "batch_size", "batches"), [(5, 2, 2), (1, 8, 1), (3, 1, 3), (9, 8, 1)]
)
def test_batches_of_one_do_not_break_batch_norm(
    examples: int, batch_size: int, batches: int
) -> None:
    net = resnet(Slice(width=1 / 16), "resnet18")  # on 8x8 pixels its last maps are 1x1
    settings = replace(CPU, batch_size=batch_size)
    report = fit(net, digits(examples), cross_entropy, settings, round=1, seed=0)
    assert (report.batches, report.examples) == (batches, examples)
    assert math.isfinite(report.loss)
    assert all(tensor.isfinite().all() for tensor in net.state_dict().values())


# The same again


@pytest.mark.parametrize("augment", [False, True])
def test_the_same_seed_gives_the_same_weights_whatever_ran_before(augment: bool) -> None:
    settings = replace(CPU, epochs=2, augment=augment)
    data = replace(digits(20), facts=replace(IMAGES["digits"], crop_padding=1, flip=True))
    first, again, other = resnet(EXITS), resnet(EXITS), resnet(EXITS)
    fit(first, data, cross_entropy, settings, round=1, seed=7)
    fit(resnet(), digits(9), cross_entropy, CPU, round=1, seed=1)
    torch.rand(5)
    fit(again, data, cross_entropy, settings, round=1, seed=7)
    fit(other, data, cross_entropy, settings, round=1, seed=8)
    assert same(state_of(first), state_of(again))
    assert not same(state_of(first), state_of(other))


def test_dropout_draws_from_the_seed_and_leaves_the_process_its_own_chance() -> None:
    torch.manual_seed(5)
    chance = torch.get_rng_state()
    first, again = Dropping(), Dropping()
    fit(first, digits(20), cross_entropy, CPU, round=1, seed=7)
    assert torch.equal(torch.get_rng_state(), chance)
    torch.rand(5)
    fit(again, digits(20), cross_entropy, CPU, round=1, seed=7)
    assert same(state_of(first), state_of(again))


# Formats


def test_bf16_trains_on_the_cpu_and_keeps_float32_weights() -> None:
    half, full = resnet(), resnet()
    settings = replace(CPU, precision="bf16")
    report = fit(half, digits(16), cross_entropy, settings, round=1, seed=0)
    exact = fit(full, digits(16), cross_entropy, CPU, round=1, seed=0)
    assert report.loss == pytest.approx(exact.loss, rel=0.05)
    assert not same(state_of(half), state_of(full))
    assert {tensor.dtype for tensor in half.state_dict().values()} == {torch.float32}
    assert math.isfinite(evaluate(half, digits(16), settings)[-1].loss)


def test_fp16_is_refused_on_the_cpu() -> None:
    settings = replace(CPU, precision="fp16")
    with pytest.raises(ValueError, match="fp16 needs CUDA, not cpu: choose auto, fp32, bf16"):
        fit(Flat(), digits(4), cross_entropy, settings, round=1, seed=0)


def test_a_scaled_loss_makes_the_same_step_and_an_overflow_makes_none() -> None:
    """What fp16 on CUDA does, with torch's scaler on the CPU."""
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
    fit(plain, digits(8), cross_entropy, CPU, round=1, seed=0)
    moved = state_of(scaled)
    torch.testing.assert_close(moved, state_of(plain))
    step(math.inf)
    assert same(state_of(scaled), moved)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_device_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(ValueError, match="device is 'cuda', which this machine lacks: choose auto"):
        choose_device("cuda")


def test_channels_last_changes_speed_not_results() -> None:
    settings = replace(PLAIN, batch_size=16)
    states = []
    for layout in ("on", "off"):
        net = resnet(Slice())
        chosen = replace(settings, channels_last=layout)
        fit(net, digits(16), cross_entropy, chosen, round=1, seed=0)
        assert all(tensor.is_contiguous() for tensor in net.state_dict().values())
        states.append(state_of(net))
    for name, tensor in states[0].items():
        torch.testing.assert_close(tensor, states[1][name], rtol=1e-3, atol=1e-4)


def test_channels_last_is_kept_from_slices_that_onednn_corrupts_memory_with() -> None:
    assert Placement.of(CPU, resnet(Slice())).layout == torch.channels_last
    assert Placement.of(CPU, resnet(QUARTER)).layout == torch.contiguous_format
    with pytest.raises(ValueError, match="channels_last is 'on': expected 'auto' or 'off'"):
        Placement.of(replace(CPU, channels_last="on"), resnet(QUARTER))


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


def test_training_does_not_move_static_statistics() -> None:
    net = resnet(QUARTER, norm="bn-static")
    statistics, _ = gather_statistics(net, digits(40), CPU)
    net.load_state_dict(statistics, strict=False)
    fit(net, digits(16), cross_entropy, CPU, round=1, seed=0)
    kept = net.state_dict()
    assert all(torch.equal(kept[name], tensor) for name, tensor in statistics.items())
    norms = [module for module in net.modules() if isinstance(module, StaticBatchNorm2d)]
    assert norms
    assert not any(norm.gathering for norm in norms)


def test_gathering_needs_static_norms_and_examples() -> None:
    with pytest.raises(ValueError, match="no static batch norm"):
        gather_statistics(resnet(), digits(4), CPU)
    with pytest.raises(ValueError, match="1 examples are too few"):
        gather_statistics(resnet(norm="bn-static"), digits(1), CPU)


# Networks


def test_a_network_used_again_remembers_nothing() -> None:
    state = state_of(resnet(EXITS, norm="bn-static"))
    data, task = digits(16), replace(DIGITS, options=(("norm", "bn-static"),))
    used = load_network(task, EXITS, state)
    fit(used, digits(24, seed=9), cross_entropy, CPU, round=1, seed=4)
    gather_statistics(used, data, CPU)
    evaluate(used, data, CPU)
    F.cross_entropy(used(next(data.batches(8))[0])[-1], data.labels[:8]).backward()

    again = load_network(task, EXITS, state)
    assert again is used
    assert same(state_of(again), state)
    assert all(parameter.grad is None for parameter in again.parameters())
    fresh = resnet(EXITS, norm="bn-static")
    reports = [fit(net, data, cross_entropy, CPU, 1, seed=5).loss for net in (again, fresh)]
    assert reports[0] == reports[1]
    assert same(state_of(again), state_of(fresh))


def test_training_changes_neither_the_state_received_nor_the_state_sent() -> None:
    state = state_of(resnet())
    received = {name: tensor.clone() for name, tensor in state.items()}
    net = load_network(DIGITS, QUARTER, state)
    fit(net, digits(16), cross_entropy, CPU, round=1, seed=0)
    sent = state_of(net)
    copies = {name: tensor.clone() for name, tensor in sent.items()}
    fit(net, digits(16), cross_entropy, CPU, round=1, seed=0)
    assert same(state, received)
    assert same(sent, copies)
    assert not same(sent, state)


def test_building_a_network_leaves_the_process_its_own_chance() -> None:
    chance = torch.get_rng_state()
    load_network(DIGITS, Slice(0.125), state_of(resnet(Slice(0.125))))
    assert torch.equal(torch.get_rng_state(), chance)


def test_a_state_of_another_slice_is_refused_by_name() -> None:
    state = state_of(resnet())
    missing = {name: tensor for name, tensor in state.items() if name != "conv1.weight"}
    with pytest.raises(ValueError, match=r"conv1\.weight is missing in the state received"):
        load_network(DIGITS, QUARTER, missing)
    with pytest.raises(ValueError, match="stray is missing in the slice"):
        load_network(DIGITS, QUARTER, state | {"stray": torch.zeros(1)})
    with pytest.raises(ValueError, match=r"has shape \(4, 1, 3, 3\): expected \(8, 1, 3, 3\)"):
        load_network(DIGITS, Slice(0.5), state)


# The device


def test_threads_are_those_given_and_never_more_than_the_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cores = len(os.sched_getaffinity(0))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert set_threads() == torch.get_num_threads() == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "1000")
    assert 1 <= set_threads() <= cores
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert 1 <= set_threads() == torch.get_num_threads() <= cores


def test_on_the_cpu_data_is_not_copied() -> None:
    data = digits(4)
    assert resident(data, torch.device("cpu")) is data


def test_a_probe_measures_memory_and_speed() -> None:
    found = probe(Task("resnet20", 10, 1, 8), CPU, seconds=0.1)
    assert 0 < found.memory_bytes < 2**50
    assert free_memory(torch.device("cpu")) > 0
    assert found.samples_per_second > 0


def test_a_budget_is_the_scarcer_of_memory_and_speed() -> None:
    # Half of 4000 bytes is a quarter of 8000; 160/s at a quarter of the width is 10/s at full.
    assert budget(Probe(4000, 160.0), 8000, 10.0) == 0.25
    assert budget(Probe(4000, 160.0), 1000, 20.0) == 0.5
    assert budget(Probe(10**9, 1e9), 1000, 10.0) == 1.0
    shares = [budget(Probe(memory, 160.0), 8000, 10.0) for memory in range(0, 40_000, 1000)]
    assert shares == sorted(shares)
    with pytest.raises(ValueError, match="memory_bytes is 0"):
        budget(Probe(1, 1.0), 0, 1.0)


# A new process for every message


def test_training_starts_without_heavy_imports() -> None:
    script = """
import sys
import torch
import client_app.networks, client_app.probe
from client_app.sgd import SGD
from client_app.training import TrainSettings, evaluate, fit
from client_app.objectives import cross_entropy
from data import IMAGES, ImageData
from models import SlicedNetwork
class Net(SlicedNetwork):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 10)
    def forward(self, x):
        return [self.linear(x.flatten(1))]
data = ImageData(torch.zeros(4, 1, 8, 8).byte(), torch.zeros(4).long(), IMAGES["digits"])
settings = TrainSettings(device="cpu", clip=1.0)
fit(net := Net(), data, cross_entropy, settings, 1, 0)
evaluate(net, data, settings)
heavy = "torchvision transformers sklearn datasets flwr matplotlib torch._dynamo".split()
print([name for name in heavy if name in sys.modules])
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
