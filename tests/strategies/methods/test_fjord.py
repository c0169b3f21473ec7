"""FjORD as a whole: draws, steps that update a part in place, each width's statistics, runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from click.testing import CliRunner
from torch import Tensor, nn

from data.spec import DatasetSpec
from models import Slice, SlicedNetwork, Task, extract, families, slice_map
from models.families import Family
from models.slicing import SliceMap, is_running_statistic, nested_width, without_width
from nestfl.commands import app as command
from protocol.reports import Evaluation, Profile
from protocol.train_settings import TrainSettings
from protocol.work import Work
from server_app.building import strategy_of
from server_app.config.composing import ConfigError, compose
from strategies.aggregation.nested_mean import NestedMean
from strategies.aggregation.update import Update
from strategies.assignment import Assignment
from strategies.evaluation import evaluate_submodels
from strategies.federation import Federation, FleetConfig, ModelConfig
from strategies.methods.fjord.fjord import FjORD, FjORDSettings, FjORDTraining, distilled
from strategies.nodes.enrolment import Client
from tests.support.federations import SMALL, Federate, federate_in
from tests.support.toy_networks import randomised, same, state_of
from tests.support.toy_training import CPU, digits
from training.devices import PlacedNetwork, Placement
from training.fitting import fit

pytestmark = pytest.mark.usefixtures("one_thread")

FIFTHS = (0.2, 0.4, 0.6, 0.8, 1.0)
RESNET = Task("resnet20", 10, 1, 8, options=(("norm", "bn-running"),))
WIDE, NARROW = 0.5, 0.25
HELD = Slice(width=WIDE, rounding="ceil", nested=(NARROW,))
STEPS = replace(CPU, momentum=0.9, weight_decay=0.01, channels_last="off")
RUN = "strategy=fjord model.norm=bn-running"


class Five(SlicedNetwork):
    """Five channels and their norm: a fifth of the width is one channel."""

    def __init__(self, classes: int, inputs: int, slice: Slice) -> None:
        super().__init__()
        self.exits, channels = nn.ModuleDict(), slice.channels(5)
        self.conv = nn.Conv2d(inputs, channels, 1, bias=False)
        self.bn = nn.BatchNorm2d(channels)
        self.fc = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> list[Tensor]:
        return [self.fc(F.relu(self.bn(self.conv(x))).mean((2, 3)))]


@pytest.fixture
def five(monkeypatch: pytest.MonkeyPatch) -> Task:
    monkeypatch.setitem(families._FAMILIES, "five", Family(Five, 1))
    return Task("five", 10, 1, 8)


@pytest.fixture
def federate(tmp_path: Path) -> Federate:
    return federate_in(tmp_path)


def network(task: Task, held: Slice) -> SlicedNetwork:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = task.build(held)
    randomised(net)
    return net


def client_half(
    task: Task,
    held: Slice,
    seed: int = 0,
    train: TrainSettings = STEPS,
    **settings: Any,
) -> tuple[SlicedNetwork, FjORDTraining]:
    """Return a client's network, and its training, which has begun."""
    net = network(task, held)
    work = Work(task, held, DatasetSpec(), train, seed=seed)
    training = FjORDTraining(FjORDSettings(**settings), work, digits(32), {})
    training.begin(net)
    return net, training


def placed(net: SlicedNetwork, train: TrainSettings = STEPS) -> PlacedNetwork:
    return PlacedNetwork(net, Placement.of(train, net), net)


def batch(size: int = 8) -> tuple[Tensor, Tensor]:
    return next(digits(size).batches(size))


def batches_seen(net: SlicedNetwork, norm: str) -> list[int]:
    """Return the number of batches that each width has normalised, the smallest first."""
    state, counts = net.state_dict(), dict[int, int]()
    for name, tensor in state.items():
        if without_width(name) == f"{norm}.num_batches_tracked":
            counts[nested_width(name) or len(state)] = int(tensor)
    return [counts[width] for width in sorted(counts)]


def draws(task: Task, widths: int, seed: int, count: int) -> Iterator[int]:
    """Yield the widths, counted from 1, that a client of so many draws for its batches."""
    held = Slice(width=FIFTHS[widths - 1], rounding="ceil", nested=FIFTHS[: widths - 1])
    net, training = client_half(task, held, seed)
    before = batches_seen(net, "bn")
    for _ in range(count):
        training.loss(placed(net), *batch(2))
        after = batches_seen(net, "bn")
        (drawn,) = (n for n, (a, b) in enumerate(zip(before, after, strict=True), 1) if a != b)
        before = after
        yield drawn


def cut_at(net: SlicedNetwork, task: Task, width: float, number: int) -> SlicedNetwork:
    """Return a network of its own for a nested width: copies of the weights and statistics."""
    part, whole = task.build(Slice(width=width, rounding="ceil")), net.state_dict()
    mapping = slice_map(net, part, bank_of=lambda name: None)
    shared = {n: region for n, region in mapping.regions.items() if not is_running_statistic(n)}
    own = {without_width(n): t.clone() for n, t in whole.items() if nested_width(n) == number}
    part.load_state_dict({**extract(whole, SliceMap(shared)), **own})
    return part.train()


# --- widths and draws ------------------------------------------------------------------------


def test_widths_of_64_channels_are_13_26_39_52_and_64() -> None:
    levels = FjORDSettings().plan(Task("resnet18"), (), early_exits=False)
    networks = [Task("resnet18").build(level.slice, "meta") for level in levels]
    first = [len(net.get_parameter("conv1.weight")) for net in networks]
    assert first == [13, 26, 39, 52, 64]


def test_a_batch_draws_any_width_up_to_the_client_s_own_equally_often(five: Task) -> None:
    """Five equal tiers: width 1 is drawn by all of them, (1 + 1/2 + 1/3 + 1/4 + 1/5) / 5."""
    counts, each = [0] * 5, 400
    for tier in range(1, 6):
        for seed in range(10):
            for drawn in draws(five, tier, 100 * tier + seed, each // 10):
                counts[drawn - 1] += 1
    shares = [count / (5 * each) for count in counts]
    assert shares == pytest.approx([0.456667, 0.256667, 0.156667, 0.09, 0.04], abs=0.02)


def test_the_same_seed_draws_the_same_widths_and_another_one_others(five: Task) -> None:
    first, again, other = (list(draws(five, 5, seed, 20)) for seed in (3, 3, 4))
    assert first == again != other
    assert len(set(first)) > 1


def test_widths_are_not_drawn_by_the_numbers_that_order_the_examples(five: Task) -> None:
    """Of one stream the first example of a first batch would tell its width, modulo 5."""
    alike = 0
    for seed in range(40):
        order = torch.randperm(500, generator=torch.Generator().manual_seed(seed))
        alike += next(draws(five, 5, seed, 1)) - 1 == int(order[0]) % 5
    assert alike < 20


# --- steps -----------------------------------------------------------------------------------


def test_narrow_networks_are_the_client_s_own_memory() -> None:
    net, training = client_half(RESNET, HELD)
    (narrow,) = training.narrower
    parameters, state = dict(net.named_parameters()), net.state_dict()
    assert narrow.leaves.keys() == parameters.keys()
    for name, leaf in narrow.leaves.items():
        assert leaf.data_ptr() == parameters[name].data_ptr()
        assert leaf.stride() == parameters[name].stride()
    assert narrow.leaves["conv1.weight"].shape == (4, 1, 3, 3)
    for name, buffer in narrow.buffers.items():
        holder, _, tensor = name.rpartition(".")
        assert buffer.data_ptr() == state[f"{holder}.width1.{tensor}"].data_ptr()
    assert all(parameter.is_meta for parameter in narrow.module.parameters())


def test_a_narrow_network_computes_what_one_cut_at_its_width_computes() -> None:
    net, training = client_half(RESNET, HELD)
    cut, (images, _) = cut_at(net, RESNET, NARROW, 1), batch()
    own = {n: t.clone() for n, t in net.state_dict().items() if nested_width(n) is None}
    for run in (training.narrower[0], training.narrower[0].within):
        torch.testing.assert_close(run(images)[-1], cut(images)[-1])
    statistics = {n: t for n, t in cut.state_dict().items() if is_running_statistic(n)}
    for name, tensor in net.state_dict().items():
        if nested_width(name) == 1:
            torch.testing.assert_close(tensor, statistics.pop(without_width(name)))
        else:
            assert torch.equal(tensor, own[name])
    assert statistics == {}


def seed_that_draws(task: Task, *widths: int) -> int:
    return next(n for n in range(100) if list(draws(task, 2, n, len(widths))) == list(widths))


@pytest.mark.parametrize("nesterov", [False, True])
def test_a_step_moves_the_drawn_part_as_a_cut_network_s_and_nothing_else(
    five: Task, nesterov: bool
) -> None:
    """A whole step, then a narrow one whose momentum goes on from it, then a whole one."""
    seed, settings = seed_that_draws(five, 2, 1, 2), replace(STEPS, nesterov=nesterov)
    ours = network(RESNET, HELD)
    order = torch.Generator().manual_seed(seed)
    first, second, third = digits(24).batches(8, shuffle=True, generator=order)
    own = Slice(width=WIDE, rounding="ceil")

    def sgd(moved: SlicedNetwork) -> torch.optim.SGD:
        return torch.optim.SGD(
            moved.parameters(), 0.05, momentum=0.9, weight_decay=0.01, nesterov=nesterov
        )

    def step(moved: SlicedNetwork, optimiser: torch.optim.SGD, what: tuple[Tensor, Tensor]) -> None:
        optimiser.zero_grad()
        F.cross_entropy(moved(what[0])[-1], what[1]).backward()
        optimiser.step()

    whole = sgd(ours)
    step(ours, whole, first)
    narrow = cut_at(ours, RESNET, NARROW, 1)
    regions = slice_map(RESNET.build(own, "meta"), narrow, bank_of=lambda name: None).regions
    pairs = {
        name: (wide, part, regions[name])
        for (name, wide), part in zip(ours.named_parameters(), narrow.parameters(), strict=True)
    }
    cuts = sgd(narrow)
    for wide, part, region in pairs.values():
        cuts.state[part]["momentum_buffer"] = region.of(whole.state[wide]["momentum_buffer"])
    step(narrow, cuts, second)
    with torch.no_grad():  # the cut network's weights, momenta and statistics go back
        for wide, part, region in pairs.values():
            region.view_of(wide).copy_(part)
            momentum = whole.state[wide]["momentum_buffer"]
            region.view_of(momentum).copy_(cuts.state[part]["momentum_buffer"])
        for name, tensor in ours.state_dict().items():
            if nested_width(name):
                tensor.copy_(narrow.state_dict()[without_width(name)])
    after_two = state_of(ours)
    step(ours, whole, third)

    net, training = client_half(RESNET, HELD, seed, settings)
    seen: list[dict[str, Tensor]] = []

    def noting(placed: PlacedNetwork, inputs: Tensor, labels: Tensor) -> Tensor:
        seen.append(state_of(placed.module))
        return training.loss(placed, inputs, labels)

    fit(net, digits(24), noting, settings, 1, seed, training.moved(net))
    (_, after_first, after_second), after_third = seen, state_of(net)
    torch.testing.assert_close(after_second, after_two)
    torch.testing.assert_close(after_third, state_of(ours))
    for name, (_, _, region) in pairs.items():  # outside of the part: not a bit
        outside = torch.ones_like(after_first[name], dtype=torch.bool)
        region.view_of(outside).fill_(False)
        assert torch.equal(after_first[name][outside], after_second[name][outside])
        assert not torch.equal(after_first[name], after_second[name])
        outer = after_second[name][outside], after_third[name][outside]
        assert not outside.any() or not torch.equal(*outer)  # the next whole step moves it


def test_a_clipped_batch_of_a_narrow_width_has_its_part_s_norm(five: Task) -> None:
    plain = replace(STEPS, momentum=0.0, weight_decay=0.0, lr=1.0, clip=0.01)
    net, training = client_half(RESNET, HELD, seed_that_draws(five, 1), plain)
    before = state_of(net)
    fit(net, digits(8), training.loss, plain, 1, 0, training.moved(net))
    names = [name for name, _ in net.named_parameters()]
    change = [(net.state_dict()[name] - before[name]).norm() for name in names]
    assert float(torch.stack(change).norm()) == pytest.approx(0.01, rel=1e-3)


def test_a_narrow_network_s_images_are_laid_out_for_it_not_for_the_wide_one() -> None:
    """oneDNN corrupts memory with the narrow one's strided 1x1 convolutions: issue 6035."""
    task, whole = replace(RESNET, in_channels=3), Slice(rounding="ceil", nested=(NARROW,))
    net, training = client_half(task, whole, train=CPU)
    assert placed(net, CPU).place.layout == torch.channels_last
    contiguous = []
    watched = training.narrower[0].module.register_forward_pre_hook(
        lambda module, inputs: contiguous.append(inputs[0].is_contiguous())
    )
    try:
        for _ in range(6):
            training.loss(placed(net, CPU), torch.randn(2, 3, 8, 8), torch.tensor([0, 1]))
    finally:
        watched.remove()
    assert contiguous
    assert all(contiguous)
    with pytest.raises(ValueError, match="channels_last is 'on': expected 'auto' or 'off'"):
        client_half(task, whole, train=replace(CPU, channels_last="on"))


def test_training_leaves_the_cached_mould_as_it_was(five: Task) -> None:
    held = Slice(rounding="ceil", nested=FIFTHS[:4])
    net, training = client_half(five, held, train=STEPS)
    module = training.narrower[0].module
    before = {n: t.clone() for n, t in module.state_dict().items() if not t.is_meta}
    fit(net, digits(32), training.loss, replace(STEPS, epochs=4), 1, 0, training.moved(net))
    assert sum(batches_seen(net, "bn")[:-1]) > 0
    after = {n: t for n, t in module.state_dict().items() if not t.is_meta}
    assert same(before, after)
    assert all(parameter.grad is None for parameter in module.parameters())
    _, again = client_half(five, held)
    assert again.narrower[0].module is module


# --- statistics ------------------------------------------------------------------------------


def test_a_drawn_width_s_own_statistics_move_and_no_other_s(five: Task) -> None:
    net, training = client_half(five, Slice(rounding="ceil", nested=FIFTHS[:4]))
    before = state_of(net)
    training.narrower[1](batch()[0])
    changed = {name for name, tensor in net.state_dict().items() if not tensor.equal(before[name])}
    assert changed == {f"bn.width2.{what}" for what in BATCH_NORM}


BATCH_NORM = ("running_mean", "running_var", "num_batches_tracked")


def strategy_on_five(**settings: Any) -> FjORD:
    """Return FjORD on the network of five channels, with one client in each tier."""
    fleet = FleetConfig(5, FIFTHS, (1.0,) * 5)
    return FjORD(
        Federation(
            model=ModelConfig("five"),
            dataset=DatasetSpec(clients=5),
            fleet=fleet,
            clients_per_round=5,
        ),
        FjORDSettings(**settings),
    )


def assigned(strategy: FjORD) -> list[Assignment]:
    """Return the assignment of a client of each tier."""
    clients = [Client(n, n, Profile(n, 5, 10, None, "cpu")) for n in range(5)]
    return list(strategy.assign(1, clients))


@pytest.mark.usefixtures("five")
def test_affine_weights_are_shared_and_statistics_are_each_width_s() -> None:
    strategy = strategy_on_five()
    norms = {name for name in strategy.state if name.startswith("bn.") and "@" in name}
    assert norms == {f"bn.{what}@level{n}" for what in BATCH_NORM for n in (1, 2, 3, 4, 5)}
    whole = strategy.submodels.of(assigned(strategy)[4].cut).map.regions
    assert {name: region.source for name, region in whole.items() if "running_mean" in name} == {
        "bn.running_mean": "bn.running_mean@level5",
        **{f"bn.width{n}.running_mean": f"bn.running_mean@level{n}" for n in (1, 2, 3, 4)},
    }
    assert (whole["bn.weight"].source, whole["bn.weight"].banked) == ("bn.weight", False)


def of_tier(strategy: FjORD, tier: int, weight: float, **values: list[float]) -> Update:
    """Return a tier's update: zeros, but for the tensors that are given."""
    submodel = strategy.submodels.of(assigned(strategy)[tier - 1].cut)
    state = {name: torch.zeros_like(t, device="cpu") for name, t in submodel.form.items()}
    for name, value in values.items():
        state[name.replace("__", ".")] = torch.tensor(value)
    return Update(state, submodel.map, weight)


@pytest.mark.usefixtures("five")
def test_the_nested_mean_is_weighted_by_examples_and_keeps_what_nobody_held() -> None:
    strategy, mean = strategy_on_five(), NestedMean()
    mean.add(of_tier(strategy, 2, 100, bn__bias=[1.0, 2.0]))
    mean.add(of_tier(strategy, 4, 300, bn__bias=[5.0, 6.0, 7.0, 8.0]))
    found = mean.result({**strategy.state, "bn.bias": torch.full((5,), 9.0)})
    assert found["bn.bias"].tolist() == [4, 5, 7, 8, 9]


@pytest.mark.usefixtures("five")
def test_statistics_are_averaged_over_those_who_train_their_width_and_nobody_else() -> None:
    strategy, mean = strategy_on_five(), NestedMean()
    mean.add(of_tier(strategy, 2, 1, bn__running_mean=[3.0, 5.0], bn__width1__running_mean=[1.0]))
    mean.add(
        of_tier(
            strategy,
            4,
            3,
            bn__running_mean=[4.0] * 4,
            bn__width3__running_mean=[6.0] * 3,
            bn__width2__running_mean=[7.0, 9.0],
            bn__width1__running_mean=[5.0],
        )
    )
    old = {**strategy.state, "bn.running_mean@level5": torch.full((5,), 9.0)}
    found = mean.result(old)
    assert [found[f"bn.running_mean@level{n}"].tolist() for n in (1, 2, 3, 4, 5)] == [
        [4.0],  # (1 + 3 * 5) / 4
        [6.0, 8.0],  # (3 + 3 * 7) / 4, (5 + 3 * 9) / 4
        [6.0] * 3,
        [4.0] * 4,
        [9.0] * 5,
    ]


@pytest.mark.usefixtures("five")
def test_every_level_is_tested_with_its_own_statistics() -> None:
    strategy, tested = strategy_on_five(), list[list[float]]()
    means = {f"bn.running_mean@level{n}": torch.full((n,), float(n)) for n in (1, 2, 3, 4, 5)}
    strategy.adopt({**strategy.state, **means})

    def evaluate(net: nn.Module) -> Evaluation:
        tested.append(net.state_dict()["bn.running_mean"].tolist())
        assert not any(nested_width(name) for name in net.state_dict())
        return Evaluation(1, (0.5,), (1.0,))

    evaluate_submodels(strategy, evaluate)
    expected = [[float(n)] * n for n in (1, 2, 3, 4, 5)]
    assert tested == expected
    networks = [strategy.network(n).state_dict()["bn.running_mean"] for n in (1, 2, 3, 4, 5)]
    assert [statistics.tolist() for statistics in networks] == expected


# --- distillation ----------------------------------------------------------------------------


def test_the_largest_width_learns_from_labels_and_the_drawn_one_from_its_answers() -> None:
    """Cross-entropy .239545 of the teacher; the student's is KL .302929 + entropy .665573."""
    teacher = torch.tensor([[2.0, 0.0, 0.0]], requires_grad=True)
    student = torch.tensor([[1.0, 1.0, 0.0]], requires_grad=True)
    loss = distilled(teacher, student, torch.tensor([0]))
    assert float(loss.detach()) == pytest.approx(0.239545 + 0.968502, abs=1e-6)
    loss.backward()
    answers, said = teacher.detach().softmax(1), student.detach().softmax(1)
    assert teacher.grad is not None
    assert student.grad is not None
    torch.testing.assert_close(teacher.grad, answers - torch.tensor([[1.0, 0.0, 0.0]]))
    torch.testing.assert_close(student.grad, said - answers)


def test_with_distillation_every_parameter_has_a_gradient_in_every_batch() -> None:
    net, training = client_half(RESNET, HELD, distillation=True)
    moved = training.moved(net)
    assert [id(tensor) for tensor in moved] == [id(tensor) for tensor in net.parameters()]
    for _ in range(6):
        net.zero_grad()
        training.loss(placed(net), *batch()).backward()
        assert all(p.grad is not None and p.grad.any() for p in net.parameters())
    wide, narrow = (int(net.state_dict()[f"bn1.{w}num_batches_tracked"]) for w in ("", "width1."))
    assert wide == 6
    assert 0 < narrow < 6


def test_without_distillation_a_narrow_batch_has_gradients_of_its_part_alone(five: Task) -> None:
    net, training = client_half(RESNET, HELD, seed_that_draws(five, 1))
    training.loss(placed(net), *batch()).backward()
    assert all(parameter.grad is None for parameter in net.parameters())
    assert all(leaf.grad is not None for leaf in training.narrower[0].leaves.values())


def test_distillation_trains_networks_whose_first_channels_are_no_block() -> None:
    task = Task("bert-tiny", 2, tokens=8)
    net, training = client_half(
        task, Slice(rounding="ceil", nested=(0.5,)), train=CPU, distillation=True
    )
    words = torch.arange(32).reshape(4, 8) + 1
    drawn = set()
    for _ in range(8):
        net.zero_grad()
        loss = training.loss(placed(net, CPU), words, torch.tensor([0, 1, 1, 0]))
        loss.backward()
        drawn.add(float(loss.detach()) > 1.0)  # two terms of about log 2, or one
        assert net.get_parameter("classifier.weight").grad is not None
    assert drawn == {True, False}


# --- runs ------------------------------------------------------------------------------------


def test_with_one_width_it_is_fedavg_bit_for_bit(federate: Federate) -> None:
    one = "model.norm=bn-running rounds=1 strategy.widths=[1.0]"
    fjord, (ours,) = federate(f"strategy=fjord {one}")
    fedavg, (theirs,) = federate(f"strategy=fedavg strategy.ratios=null {one}")
    assert same(dict(fjord.state), dict(fedavg.state))
    assert ours["train"] == theirs["train"]
    start = strategy_of(compose(f"{SMALL} strategy=fjord {one} output=unused"))
    assert not torch.equal(fjord.state["conv1.weight"], start.state["conv1.weight"])


def test_a_resumed_run_ends_with_the_same_weights(federate: Federate, tmp_path: Path) -> None:
    straight, _ = federate(f"{RUN} checkpoint.keep=3 name=straight")
    first = tmp_path / "straight" / "checkpoints" / "round-000001.safetensors"
    resumed, _ = federate(f"resume={first}")
    assert resumed.round == straight.round == 2
    assert same(dict(straight.state), dict(resumed.state))


def test_whoever_holds_a_width_trains_the_narrower_ones(federate: Federate) -> None:
    """Of two clients one holds level 1 and one level 5: those between are trained, and tested."""
    strategy, lines = federate(f"{RUN} fleet.clients=2 clients_per_round=2 rounds=1")
    assert isinstance(strategy, FjORD)
    assert {client: own["level"] for client, own in lines[0]["trained"].items()} == {
        "0": 1, "1": 5,
    }  # fmt: skip
    assert strategy.untrained == set()
    assert strategy.coverage.held == {1: 2, 2: 1, 3: 1, 4: 1, 5: 1}
    assert all("lack" not in level for level in lines[0]["levels"].values())
    largest, examples = lines[0]["slices"]["5"], lines[0]["trained"]["1"]["examples"]
    assert largest["macs"] == 3 * examples * strategy._macs(strategy.levels[-1])
    accuracies = [level["accuracy"] for level in lines[0]["levels"].values()]
    assert lines[0]["mean"] == pytest.approx(sum(accuracies) / 5)


def test_predict_answers_as_the_run_s_last_test_did(federate: Federate, tmp_path: Path) -> None:
    _, lines = federate(f"{RUN} rounds=1 train.batch_size=8 fleet.shares=[0,0,0,1] name=run")
    for level in ("1", "5"):
        asked = ["predict", str(tmp_path / "run"), "--level", level, "--json"]
        result = CliRunner().invoke(command, asked, catch_exceptions=False)
        assert result.exit_code == 0, result.stderr
        found = json.loads(result.stdout)
        assert (found["level"], found["inputs"]) == (int(level), 60)
        assert found["accuracy"] == pytest.approx(lines[-1]["levels"][level]["accuracy"])
        assert "untrained" not in found


@pytest.mark.usefixtures("five")
def test_macs_are_the_mean_over_the_widths_that_are_drawn() -> None:
    """Of 64 pixels: 64 a channel, and its 10 of the classifier. So 74 for each channel."""
    strategy = strategy_on_five()
    assert [strategy._macs(level) for level in strategy.levels] == [
        74,
        111,  # 74 * (1 + 2) / 2
        148,
        185,
        222,
    ]
    teaching = strategy_on_five(distillation=True)
    assert [teaching._macs(level) for level in teaching.levels] == [
        74,
        185,  # 148, and 74 for half of the batches
        296,
        407,
        518,
    ]


# --- bad input -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("strategy.widths=null", "widths are null: expected those that clients draw from"),
        ("strategy.widths=[]", "widths are []: expected to rise from above 0 to 1"),
        ("strategy.widths=[0.5]", "widths are [0.5]: expected to rise from above 0 to 1"),
        (
            "train.optimizer=adamw",
            "train.optimizer is adamw, which moves what a batch's width leaves out, too: choose "
            "sgd, or strategy.distillation=true",
        ),
        (
            "model=bert-tiny dataset=docstrings",
            "the first channels of embeddings.word_embeddings.weight of bert-tiny are not one "
            "block, which a step could move by itself: choose a residual network such as resnet20,",
        ),
        ("strategy.distillation=2", "strategy.distillation: expected true or false, got 2"),
    ],
)
def test_bad_input_is_refused_with_the_value_and_the_choices(overrides: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        compose(f"strategy=fjord {overrides}")
    assert message in str(raised.value)


@pytest.mark.parametrize(
    "overrides",
    ["strategy.distillation=true", "strategy.widths=[1]"],
)
def test_adamw_is_taken_where_every_step_moves_all(overrides: str) -> None:
    assert compose(f"strategy=fjord train.optimizer=adamw {overrides}").train.optimizer == "adamw"
