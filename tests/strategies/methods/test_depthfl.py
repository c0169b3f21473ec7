"""DepthFL: its loss and FedDyn with numbers worked out by hand, its levels, rounds and answers."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from flwr.app import Message
from safetensors.torch import load_file
from torch import Tensor, nn

from data.clients import client_data
from models import Slice, SlicedNetwork, State
from models.families import _FAMILIES, Family, Walk
from nestfl.commands import app as cli
from nestfl.comparing.results import Result
from nestfl.comparing.trials import Trial
from protocol.environment import MEMORY
from protocol.reports import Profile
from protocol.work import Work
from server_app.building import evaluator, strategy_of
from server_app.config.composing import ConfigError, compose
from server_app.predictor import TO_THE_END, Predictor
from server_app.trained_level import load_level
from strategies.aggregation.nested_mean import NestedMean
from strategies.aggregation.update import Update
from strategies.evaluation import evaluate_submodels
from strategies.methods import depthfl
from strategies.methods.depthfl import DepthFL, DepthFLTraining, mutual_distillation, ramp
from strategies.nodes.enrolment import Client
from strategies.replies import Tally
from tests.support.federations import Federate, federate_in
from tests.support.grids import InProcessGrid
from tests.support.toy_training import digits
from training.devices import PlacedNetwork, Placement

RUN = (
    "strategy=depthfl model.norm=null model.head=null fleet=small dataset.max_train=160 "
    "dataset.max_test=40 report=false"
)
LOGITS = [[2.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 2.0]]
LABELS = torch.tensor([0])


@pytest.fixture
def federate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Federate:
    monkeypatch.setenv(MEMORY, str(tmp_path / "memory"))
    (tmp_path / "runs").mkdir()
    return federate_in(tmp_path / "runs")


def strategy(overrides: str = "") -> DepthFL:
    made = strategy_of(compose(f"{RUN} {overrides}"))
    assert isinstance(made, DepthFL)
    return made


def answers() -> list[Tensor]:
    return [torch.tensor([each], requires_grad=True) for each in LOGITS]


# --- the loss ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "loss"),
    [(0.0, 3.198595), (ramp(151, 300), 3.812567), (1.0, 3.198595 + 2.142971)],
)
def test_the_loss_of_three_exits_worked_out_by_hand(share: float, loss: float) -> None:
    found = mutual_distillation(answers(), LABELS, share)
    assert found.item() == pytest.approx(loss, abs=2e-6)


def test_teachers_are_detached() -> None:
    """With teachers that are not detached, the first exit's gradient differs."""
    exits = answers()
    mutual_distillation(exits, LABELS, 1.0).backward()
    assert exits[0].grad is not None
    assert exits[0].grad[0].tolist() == pytest.approx([0.240898, -0.015321, -0.225577], abs=1e-6)


@pytest.mark.parametrize(
    ("round", "share"), [(1, 0.006738), (151, 0.286505), (301, 1.0), (900, 1.0)]
)
def test_distillation_ramps_up(round: int, share: float) -> None:
    assert ramp(round, 300) == pytest.approx(share, abs=1e-6)


def test_one_exit_is_plain_cross_entropy() -> None:
    logits, labels = torch.randn(5, 3), torch.tensor([0, 1, 2, 1, 0])
    plain = nn.functional.cross_entropy(logits, labels)
    assert torch.equal(mutual_distillation([logits], labels, 1.0), plain)


@pytest.mark.parametrize("distillation", [True, False])
def test_a_client_s_loss_follows_the_round_and_the_settings(distillation: bool) -> None:
    settings = strategy(f"strategy.distillation={distillation}").settings
    made = strategy()
    work = Work(made.federation.task, Slice(), made.federation.dataset, made.federation.train)
    work = Work(**{**vars(work), "round": 151})
    training = DepthFLTraining(settings, work, digits(2), {})
    loss = training.loss(placed(Given()), torch.tensor([LOGITS]), LABELS)
    assert loss.item() == pytest.approx(3.812567 if distillation else 3.198595, abs=2e-6)


class Given(SlicedNetwork):
    """Answers with the logits that are its input, [n, exits, classes]."""

    def walk(self, x: Tensor) -> Walk:
        for number in range(x.shape[1]):
            yield x[:, number]


def placed(net: SlicedNetwork) -> PlacedNetwork:
    place = Placement(torch.device("cpu"), torch.float32, torch.contiguous_format)
    return PlacedNetwork(net, place, net)


# --- levels ------------------------------------------------------------------------------------


def test_levels_are_of_full_width_and_hold_the_exits_below() -> None:
    levels = strategy().levels
    depths = [level.split.depth for level in levels]
    assert depths == sorted(set(depths))
    assert depths[-1] == 9
    full = levels[-1].cost.parameters
    for number, (level, ratio) in enumerate(zip(levels, (0.125, 0.25, 0.5, 1), strict=True), 1):
        assert level.slice.width == 1
        assert level.slice.exits == tuple(depths[:number])
        assert level.cost.parameters <= 1.1 * ratio * full


def test_inclusive_fl_has_each_level_s_own_exit_alone() -> None:
    levels = strategy("strategy.exits=last").levels
    assert [level.slice.exits for level in levels] == [
        (level.split.depth,) for level in strategy().levels
    ]


def test_running_statistics_are_shared_by_all_levels() -> None:
    assert [name for name in strategy().state if "@" in name] == []
    assert "bn1.running_mean" in strategy().state


@pytest.mark.parametrize(
    ("overrides", "head"),
    [
        ("model=resnet20", "PoolHead"),  # by its file
        ("model=resnet20 model.head=null", "AttentionHead"),
        ("model=resnet18", "AttentionHead"),
        ("model=resnet18 model.head=conv", "ConvHead"),
        ("model=resnet18 strategy.head=null", "ConvHead"),
        ("model=resnet18 strategy=scalefl", "ConvHead"),
    ],
)
def test_networks_that_leave_it_open_have_the_paper_s_heads(overrides: str, head: str) -> None:
    config = compose(f"strategy=depthfl {overrides}")
    net = config.task.build(Slice(exits=(2,)), device="meta")
    assert type(net.exits["2"]).__name__ == head


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            "strategy.ratios=null strategy.widths=[0.5,1]",
            "strategy: widths are [0.5, 1.0]: expected null, since the levels of depthfl differ in "
            "depth alone; give ratios, or splits of width 1",
        ),
        (
            "strategy.ratios=null strategy.splits=[[3,0.5],[9,1]]",
            "strategy: splits: [3.0, 0.5]: expected width 1, since",
        ),
        ("strategy.ramp_up=0", "strategy: ramp_up is 0: expected at least 1"),
        ("strategy.alpha=-1", "strategy: alpha is -1"),
        (
            "strategy.alpha=0.1 weighting=examples",
            "strategy: weighting is examples, but FedDyn (alpha 0.1) counts all clients alike",
        ),
        (
            "strategy.ratios=[0.01,1]",
            "level 1 of resnet20: no depth costs 0.01 of the full model's 272,186 parameters at "
            "most, within 0.1; the closest is depth 1 at ",
        ),
    ],
)
def test_a_wrong_setting_is_answered_with_what_is_right(overrides: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        strategy(overrides)


# --- FedDyn ------------------------------------------------------------------------------------


class Scalar(SlicedNetwork):
    """One weight, which is the answer."""

    def __init__(self, num_classes: int, in_channels: int, slice: Slice) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(()))
        self.exits = nn.ModuleDict()

    def walk(self, x: Tensor) -> Walk:
        yield self.w.expand(len(x))


@pytest.fixture
def scalar(monkeypatch: pytest.MonkeyPatch) -> DepthFL:
    """Four clients of one level, whose loss of a client i is (w - target_i)^2 / 2."""
    monkeypatch.setitem(_FAMILIES, "scalar", Family(Scalar, 1))
    monkeypatch.setattr(
        depthfl,
        "mutual_distillation",
        lambda logits, labels, share: ((logits[0] - labels) ** 2 / 2).mean(),
    )
    config = compose(f"{RUN} strategy.ratios=[1] strategy.alpha=0.1 train.lr=0.1")
    model = type(config.model)("scalar")
    made = DepthFL(config.with_model(model), config.strategy)
    for number in range(4):
        profile = Profile(number, 4, 10, None, "cpu")
        made.roster.clients[number] = Client(number, number, profile)
    return made


Memories = dict[int, State]


def a_round(made: DepthFL, targets: dict[int, float], memories: Memories, steps: int = 1) -> State:
    """Train clients, each towards its target, through both halves of the method; return theirs."""
    made.tally = Tally(len(targets))
    mean, sent = NestedMean(), {}
    level = made.levels[0]
    for client, target in targets.items():
        net = made.network(1)
        work = Work(
            made.federation.task, level.slice, made.federation.dataset, made.federation.train
        )
        training = DepthFLTraining(made.settings, work, digits(2), memories.get(client, {}))
        training.begin(net)  # type: ignore[arg-type]
        optimiser = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(steps):
            optimiser.zero_grad()
            training.loss(placed(net), torch.zeros(1, 1), torch.tensor([target])).backward()  # type: ignore[arg-type]
            optimiser.step()
        reply = training.reply(net)  # type: ignore[arg-type]
        sent[str(client)] = reply["w"].clone()
        memories[client] = dict(training.memory)
        mean.add(Update(reply, made.submodels.at(level).map))
        made.tally.slices[1].replied += 1
    made.state = made.server_step(mean.result(made.state), made.state)
    return sent


def test_feddyn_of_one_weight_worked_out_by_hand(scalar: DepthFL) -> None:
    memories: Memories = {}
    sent = a_round(scalar, {0: 3.0, 1: 2.0}, memories)
    assert [sent["0"].item(), sent["1"].item()] == pytest.approx([1.2, 1.1])
    assert [memories[n]["w"].item() for n in (0, 1)] == pytest.approx([-0.02, -0.01])
    assert scalar.drift["w"].item() == pytest.approx(-0.0075)
    assert scalar.state["w"].item() == pytest.approx(1.225)

    sent = a_round(scalar, {0: 3.0}, memories)
    assert sent["0"].item() == pytest.approx(1.4005)
    assert memories[0]["w"].item() == pytest.approx(-0.03755)
    assert scalar.drift["w"].item() == pytest.approx(-0.0118875)
    assert scalar.state["w"].item() == pytest.approx(1.519375)


def test_feddyn_pulls_back_from_the_second_step_on(scalar: DepthFL) -> None:
    assert a_round(scalar, {0: 3.0}, {}, steps=2)["0"].item() == pytest.approx(1.378)


ALPHA = "strategy.alpha=0.1 clients_per_round=3"


@pytest.mark.parametrize(("whose", "spread"), [("all", 0), ("holders", 0), ("holders", 3)])
def test_the_server_s_drift_is_the_mean_of_the_clients_of_accepted_replies_alone(
    federate: Federate, tmp_path: Path, whose: str, spread: int
) -> None:
    """Client 1's reply of round 2 is refused: its drift of that round must not count."""

    def refused(client: int, message: Message, reply: Message) -> Message:
        train = message.metadata.message_type == "train"
        if train and client == 1 and Work.read(message.content).round == 2:
            reply.content.metric_records["metrics"]["loss"] = math.nan
        return reply

    feddyn = f"strategy.alpha=0.1 strategy.feddyn_clients={whose} fleet.spread={spread}"
    made, lines = federate(f"{RUN} {feddyn} rounds=3 train.lr=0.01", InProcessGrid(4, refused))
    assert isinstance(made, DepthFL)
    assert lines[1]["clients"]["refused"] == {"non-finite": 1}
    (run,) = (tmp_path / "memory").iterdir()
    drifts = [
        load_file(run / f"client-{client}" / f"round-{made.last_replies[client]:06d}.safetensors")
        for client in range(4)
    ]
    names = {name for drift in drifts for name in drift}
    assert made.drift.keys() == names
    assert "exits.4.fc.weight" in names
    assert "bn1.weight" in names
    assert "bn1.running_mean" not in names
    for name, drift in made.drift.items():
        held = [each[name] for each in drifts if name in each]
        # Who draws its level from all may hold any tensor.
        clients = len(held) if whose == "holders" and not spread else 4
        torch.testing.assert_close(drift, sum(held) / clients, rtol=1e-4, atol=1e-6)


def test_a_killed_run_goes_on_with_its_drift(federate: Federate, tmp_path: Path) -> None:
    whole, _ = federate(f"{RUN} {ALPHA} rounds=3 name=whole")

    def dies(client: int, message: Message, reply: Message) -> Message:
        train = message.metadata.message_type == "train"
        if train and Work.read(message.content).round == 3:
            raise KeyboardInterrupt
        return reply

    with pytest.raises(KeyboardInterrupt):
        federate(f"{RUN} {ALPHA} rounds=3 name=cut", InProcessGrid(4, dies))
    resumed, lines = federate(f"resume={tmp_path}/runs/cut")
    assert isinstance(whole, DepthFL)
    assert isinstance(resumed, DepthFL)
    assert all("forgot" not in line["clients"] for line in lines)
    assert all(torch.equal(whole.state[name], t) for name, t in resumed.state.items())
    assert whole.drift.keys() == resumed.drift.keys()
    assert all(torch.equal(whole.drift[name], t) for name, t in resumed.drift.items())


def test_a_client_of_a_smaller_level_keeps_the_drift_of_what_it_does_not_hold() -> None:
    made = strategy("strategy.alpha=0.1")
    work = Work(made.federation.task, Slice(), made.federation.dataset, made.federation.train)
    kept = {"linear.bias": torch.ones(10)}
    training = DepthFLTraining(made.settings, work, digits(2), kept)
    net: Any = made.network(1)
    training.begin(net)
    training.reply(net)
    assert torch.equal(training.memory["linear.bias"], kept["linear.bias"])
    assert set(training.memory) == {*kept, *(name for name, _ in net.named_parameters())}


def test_without_feddyn_clients_remember_nothing(federate: Federate, tmp_path: Path) -> None:
    made, _ = federate(f"{RUN} rounds=1")
    assert not (tmp_path / "memory").exists()
    assert made.last_replies == {}
    assert not any(name.startswith("drift.") for name in made.state_dict())


# --- rounds ------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["bn", "bn-running"])
def test_one_level_is_fedavg_bit_for_bit(federate: Federate, norm: str) -> None:
    same = f"fleet=small model.norm={norm} strategy.ratios=[1] dataset.max_train=160 report=false"
    depthfl, _ = federate(f"strategy=depthfl {same}")
    fedavg, _ = federate(f"strategy=fedavg {same}")
    ours, theirs = (each.network(1).state_dict() for each in (depthfl, fedavg))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("overrides", ["", "strategy.alpha=0.1", "strategy.exits=last"])
def test_a_round_changes_every_tensor(federate: Federate, overrides: str) -> None:
    before = {name: t.clone() for name, t in strategy(overrides).state.items()}
    after, _ = federate(f"{RUN} rounds=1 {overrides}")
    assert before.keys() == after.state.keys()
    assert [name for name in before if torch.equal(before[name], after.state[name])] == []


def test_every_parameter_sent_gets_a_gradient() -> None:
    made = strategy("strategy.alpha=0.1")
    for level in made.levels:
        net: Any = made.network(level.number)
        work = Work(
            made.federation.task, level.slice, made.federation.dataset, made.federation.train
        )
        training = DepthFLTraining(made.settings, work, digits(8), {})
        training.begin(net)
        loss = training.loss(placed(net), torch.randn(8, 1, 8, 8), torch.arange(8))
        loss.backward()
        idle = [name for name, p in net.named_parameters() if p.grad is None or not p.grad.any()]
        assert idle == []


# --- the ensemble ------------------------------------------------------------------------------


def test_the_mean_of_logits_is_the_answer_where_exits_disagree() -> None:
    mean = torch.tensor(LOGITS).mean(0)
    assert mean.tolist() == pytest.approx([1, 0.3333, 0.6667], abs=1e-4)
    assert (int(mean.argmax()), int(torch.tensor(LOGITS[2]).argmax())) == (0, 2)


def disagreeing(made: DepthFL) -> State:
    """Return a state whose exits answer the same to all inputs: first class 3, surely, last 7."""
    state = {name: t.clone() for name, t in made.state.items()}
    for name in state:
        if name.endswith(("fc.weight", "linear.weight", "fc.bias", "linear.bias")):
            state[name].zero_()
    first = made.levels[0].split.depth
    state[f"exits.{first}.fc.bias"][3] = 4.0
    state["linear.bias"][7] = 1.0
    return state


def test_the_server_tests_the_ensemble_and_each_exit() -> None:
    config = compose(RUN)
    made = strategy_of(config)
    assert isinstance(made, DepthFL)
    made.state = disagreeing(made)
    found = evaluate_submodels(made, evaluator(config))["levels"]["4"]
    first, *_, last = found["exits"].values()
    assert first["accuracy"] != last["accuracy"]
    assert len(found["exits"]) == 4
    assert found["accuracy"] == found["ensemble"]["accuracy"] == first["accuracy"]
    assert found["ensemble"]["loss"] not in (first["loss"], last["loss"])


def test_clients_and_predict_answer_with_the_ensemble(
    federate: Federate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DepthFL, "server_step", lambda self, state, previous: disagreeing(self))
    _, lines = federate(f"{RUN} rounds=1 dataset.max_train=400 dataset.test=0.4 name=run")
    level = load_level(tmp_path / "runs" / "run")
    predictor = Predictor(level, 16)
    images = torch.randn(6, 1, 8, 8)
    given = predictor.answer(images, TO_THE_END)
    assert given.classes.tolist() == [3] * 6
    assert given.exits.tolist() == [3] * 6
    with torch.no_grad():
        mean = torch.stack(level.net(images)).mean(0)
    torch.testing.assert_close(given.confidence, mean.softmax(1).max(1).values)
    assert predictor.macs.full == predictor.macs.exits[-1]
    assert predictor.plan_for_budget(1.0, "share") == TO_THE_END
    surest = predictor.answer(images, predictor.plan_for_threshold(0.8))
    assert (surest.classes.tolist(), surest.exits.tolist()) == ([3] * 6, [0] * 6)
    assert lines[-1]["asked"]["local"]["refused"] == {}
    for client, score in lines[-1]["scores"]["global"].items():
        threes = client_data(level.dataset, int(client)).test.labels == 3
        assert score == pytest.approx(float(threes.float().mean()))
    assert lines[-1]["levels"]["4"]["exits"].keys() == {str(unit) for unit in level.exits}


def test_a_run_is_reported_compared_and_asked(federate: Federate, tmp_path: Path) -> None:
    federate(f"{RUN} rounds=1 report=true name=run")
    directory = tmp_path / "runs" / "run"
    page = (directory / "report.html").read_text()
    assert "Accuracy against the cost of an answer" in page
    result = Result.read(Trial({}), directory, epochs=1)
    assert result is not None
    level = result.summary["levels"]["4"]
    assert result.scores["level 4"] == level["ensemble"]["accuracy"]
    assert result.scores["level 4, exit 9"] == level["exits"]["9"]["accuracy"]
    asked = CliRunner().invoke(cli, ["predict", str(directory), "--table"])
    assert asked.exit_code == 0
    assert "against the ensemble of all exits." in " ".join(asked.stdout.split())


def test_settings_by_hand_are_those_of_the_yaml() -> None:
    by_hand = depthfl.DepthFLSettings(ratios=(0.125, 0.25, 0.5, 1.0))
    assert compose("strategy=depthfl fleet=even").strategy == by_hand
    with pytest.raises(ConfigError, match="no key 'beta' in strategy"):
        compose("strategy=depthfl strategy.beta=1")
