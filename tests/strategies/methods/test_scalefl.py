"""ScaleFL: its loss with numbers worked out by hand, its levels, its windows, its rounds."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message
from torch import Tensor

from protocol.work import Work
from server_app import app as server
from server_app.building import strategy_of
from server_app.config.composing import ConfigError, compose
from server_app.record.run_record import RunRecord
from server_app.trained_level import load_level
from strategies.methods.scalefl import ScaleFL, ScaleFLSettings, self_distillation
from tests.support.grids import InProcessGrid
from training.shared_losses import kl_divergence

SMALL = (
    "strategy=scalefl model=resnet20 fleet=small rounds=2 train.epochs=1 train.batch_size=64 "
    "dataset.max_train=240 dataset.max_test=60 evaluate.every=0"
)
LABELS = torch.tensor([0])


def answer(*probabilities: float) -> Tensor:
    """Logits of one sample whose softmax is this."""
    return torch.tensor([probabilities]).log()


def strategy(overrides: str = "") -> ScaleFL:
    made = strategy_of(compose(f"{SMALL} {overrides}"))
    assert isinstance(made, ScaleFL)
    return made


def equation_5(
    logits: list[Tensor], labels: Tensor = LABELS, round: int = 1, **settings: Any
) -> Tensor:
    return self_distillation(logits, labels, ScaleFLSettings(**settings), round)


def test_kl_divergence_worked_out_by_hand() -> None:
    """3/4 ln(3/2) + 1/4 ln(1/2) at temperature 1."""
    student, teacher = answer(0.5, 0.5), answer(0.75, 0.25)
    by_hand = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert float(kl_divergence(student, teacher)) == pytest.approx(by_hand, rel=1e-5)


def test_kl_divergence_softens_by_the_temperature_and_scales_by_its_square() -> None:
    """With T = 2 the odds 9:1 become 3:1, and the divergence counts four times."""
    student, teacher = answer(0.5, 0.5), answer(0.9, 0.1)
    by_hand = 4 * (0.75 * math.log(1.5) + 0.25 * math.log(0.5))
    assert float(kl_divergence(student, teacher, 2.0)) == pytest.approx(by_hand, rel=1e-5)


def test_equation_5_worked_out_by_hand() -> None:
    """Two exits: weights 1/3 and 2/3; the first also learns from the second."""
    logits = [answer(0.5, 0.5), answer(0.75, 0.25)]
    divergence = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    by_hand = (-math.log(0.5) + 0.4 * divergence) / 3 - 2 * math.log(0.75) / 3
    loss = equation_5(logits, beta=0.4, temperature=1.0)
    assert float(loss) == pytest.approx(by_hand, rel=1e-5)


def test_the_printed_normalisation_is_half_of_it() -> None:
    logits = [answer(0.5, 0.5), answer(0.75, 0.25), answer(0.6, 0.4)]
    unit = equation_5(logits)
    printed = equation_5(logits, normalise="printed")
    assert float(printed) == pytest.approx(float(unit) / 2)


def test_one_exit_is_plain_cross_entropy() -> None:
    logits = torch.randn(5, 3)
    labels = torch.tensor([0, 1, 2, 1, 0])
    plain = torch.nn.functional.cross_entropy(logits, labels)
    torch.testing.assert_close(equation_5([logits], labels), plain)


@pytest.mark.parametrize("detach", [True, False])
def test_the_teacher_learns_from_the_labels_alone_if_it_is_detached(detach: bool) -> None:
    early, last = (answer(0.5, 0.5).requires_grad_() for _ in range(2))
    last = answer(0.75, 0.25).requires_grad_()
    loss = equation_5([early, last], beta=0.5, detach_teacher=detach)
    loss.backward()
    alone = answer(0.75, 0.25).requires_grad_()
    (2 / 3 * torch.nn.functional.cross_entropy(alone, LABELS)).backward()
    assert last.grad is not None
    assert alone.grad is not None
    assert torch.allclose(last.grad, alone.grad) is detach


def test_distillation_begins_in_the_round_that_is_asked_for() -> None:
    logits = [answer(0.5, 0.5), answer(0.75, 0.25)]
    by_round = {number: float(equation_5(logits, round=number, start=5)) for number in (4, 5)}
    without = float(equation_5(logits, beta=0.0))
    assert by_round[4] == pytest.approx(without)
    assert by_round[5] > without


def test_the_levels_are_those_of_equation_1_and_hold_the_exits_below() -> None:
    levels = strategy().levels
    depths = [level.split.depth for level in levels]
    assert depths == sorted(set(depths))
    assert depths[-1] == 9
    for number, level in enumerate(levels, 1):
        assert level.slice.exits == tuple(depths[:number])
    full = levels[-1].cost.parameters
    for level, ratio in zip(levels, (0.125, 0.25, 0.5, 1), strict=True):
        assert level.cost.parameters / full == pytest.approx(ratio, rel=0.1)


@pytest.mark.parametrize("window", ["prefix", "lower-right", "middle", "random"])
def test_a_round_changes_every_exit_and_every_tensor(window: str, tmp_path: Path) -> None:
    config = compose(f"{SMALL} strategy.window={window} rounds=1 output={tmp_path}")
    before = strategy(f"strategy.window={window}").state
    after = server.run(InProcessGrid(4), config).state
    assert [name for name in after if torch.equal(after[name], before[name])] == []


def test_a_random_window_is_each_client_s_own_and_lasts() -> None:
    federated = strategy("strategy.window=random")
    windows = [federated.window_of(client, 1) for client in range(4)]
    assert len(set(windows)) == 4
    assert windows == [strategy("strategy.window=random").window_of(n, 2) for n in range(4)]


def test_every_level_and_exit_is_reported_on_server_and_clients(tmp_path: Path) -> None:
    config = compose(f"{SMALL} output={tmp_path} name=run evaluate.clients_every=1")
    federated = server.run(InProcessGrid(4), config)
    last = list(RunRecord(tmp_path / "run").metrics())[-1]
    for level in federated.levels:
        reported = last["levels"][str(level.number)]
        assert set(reported["exits"]) == {str(unit) for unit in level.slice.exits or ()}
        assert 0 <= reported["local"] <= 1
        assert 0 <= reported["global"] <= 1
    locals_ = [last["levels"][str(level.number)]["local"] for level in federated.levels]
    assert last["local"] == pytest.approx(sum(locals_) / 4)  # one client a level


def test_without_ratios_the_levels_are_what_the_devices_afford(tmp_path: Path) -> None:
    """Eight devices name three budgets: three levels, each device at the one that it affords."""
    config = compose(
        f"{SMALL} fleet.clients=8 clients_per_round=8 strategy.ratios=null strategy.tolerance=0.2 "
        f"output={tmp_path} name=run"
    )
    grid = InProcessGrid(8)
    budgets = [0.15, 0.16, 0.15, 0.45, 0.46, 0.45, 1.0, 1.0]
    for context, budget in zip(grid.contexts.values(), budgets, strict=True):
        context.node_config["budget"] = budget
    federated = server.run(grid, config)
    assert federated.ratios == pytest.approx((0.15, 0.45, 1.0))
    sent = [m for m in grid.sent if m.metadata.message_type == "train"]
    assert Counter(_exits(message) for message in sent) == {1: 6, 2: 6, 3: 4}  # in two rounds

    resumed = server.run(InProcessGrid(8), compose(f"resume={tmp_path}/run rounds=3"))
    assert resumed.ratios == federated.ratios
    assert resumed.round == 3


def _exits(message: Message) -> int:
    return len(Work.read(message.content).slice.exits or ())


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("strategy.masked_loss=true", "no key 'masked_loss' in strategy; choose from beta, "),
        ("strategy.normalise=x", "unknown strategy.normalise 'x'; choose from unit, printed"),
        ("strategy.window=x", "unknown strategy.window 'x'; choose from prefix, upper-right"),
        ("strategy.levels=4", "strategy: levels are 4: expected null beside ratios"),
        (
            "strategy.beta=much",
            "strategy.beta: expected a number, got 'much'",
        ),
        (
            "strategy.ratios=null strategy.splits=[[7,1.0],[3,0.5]]",
            "strategy: splits have depths [7.0, 3.0]: expected to rise to the full model",
        ),
        (
            "strategy.ratios=null strategy.splits=[[3,0.5],[7,0.7]]",
            "strategy: the last split is [7.0, 0.7]: expected [9, 1.0], the full model",
        ),
        (
            "strategy.ratios=null strategy.splits=[[3.5,0.5],[9,1]]",
            "strategy: splits: [3.5, 0.5] is no pair of units and width",
        ),
        ("strategy.nonsense=1", "no key 'nonsense' in strategy; choose from "),
    ],
)
def test_a_wrong_setting_is_answered_with_the_choices(overrides: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        compose(f"{SMALL} {overrides}")
    assert str(raised.value).startswith(message)


# --- levels that share a depth ---------------------------------------------------------------


FIVE_TIERS = (
    "fleet.clients=5 clients_per_round=5 fleet.budgets=[0.2,0.4,0.6,0.8,1] "
    "fleet.shares=[1,1,1,1,1] dataset.max_train=300"
)
"""Of ResNet-20 with pool heads the upper three have all units."""
INNER_DEPTH = "strategy.ratios=null strategy.splits=[[6,0.5],[6,0.8],[9,0.8],[9,1.0]]"


@pytest.mark.parametrize(
    ("overrides", "exits"),
    [
        (FIVE_TIERS, [(7,), (7, 8), (7, 8, 9), (7, 8, 9), (7, 8, 9)]),
        (INNER_DEPTH, [(6,), (6,), (6, 9), (6, 9)]),
    ],
)
def test_levels_that_share_a_depth_train_together(
    tmp_path: Path, overrides: str, exits: list[tuple[int, ...]]
) -> None:
    """Each holds an exit once; heads are shared, and running statistics are each level's own."""
    overrides = f"{SMALL} model.norm=bn-running {overrides} output={tmp_path} name=run"
    config = compose(overrides)
    made = strategy_of(config)
    before = {name: tensor.clone() for name, tensor in made.state.items()}
    trained = server.run(InProcessGrid(config.fleet.clients), config)
    assert [level.slice.exits for level in trained.levels] == exits
    maps = [trained.submodels.at(level).map for level in trained.levels]
    sources = {region.source for each in maps for region in each.regions.values()}
    assert [name for name in sources if torch.equal(before[name], trained.state[name])] == []
    last = RunRecord(tmp_path / "run").metrics()[-1]["levels"]
    for level in trained.levels:
        held = [str(unit) for unit in level.slice.exits or ()]
        assert list(last[str(level.number)]["exits"]) == held
        restored = load_level(tmp_path / "run", level.number)
        ours, theirs = trained.network(level.number).state_dict(), restored.net.state_dict()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
        own_norm = trained.state[f"bn1.running_mean@level{level.number}"]
        assert torch.equal(ours["bn1.running_mean"], own_norm)


def test_by_default_the_paper_s_values_are_taken_by_hand_and_by_yaml_alike() -> None:
    by_hand = ScaleFLSettings(ratios=(0.125, 0.25, 0.5, 1.0))
    assert (by_hand.beta, by_hand.temperature, by_hand.start) == (0.1, 3.0, 1)
    assert compose("strategy=scalefl fleet=even").strategy == by_hand
