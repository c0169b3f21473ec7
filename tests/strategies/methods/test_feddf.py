"""FedDF as a whole: teachers, students' start, tensors that stay, and its gain."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message
from torch import Tensor

from data import unlabelled as examples
from data.clients import server_data
from data.examples import Examples
from data.spec import DatasetSpec
from data.unlabelled import numbered
from models import extract
from models.loading import load_network
from protocol.work import Work
from server_app import app as server
from server_app.building import strategy_of
from server_app.config.composing import ConfigError, compose
from server_app.config.overrides import with_absolute_paths
from server_app.record.run_record import RunRecord
from strategies.aggregation.spool import Spool
from strategies.aggregation.update import Update
from strategies.methods.feddf import feddf as module
from strategies.methods.feddf.ensemble_distillation import DistillationSettings, answers, distil
from strategies.methods.feddf.feddf import FedDF, FedDFSettings
from tests.support.federations import SMALL, Federate, federate_in, untimed
from tests.support.grids import InProcessGrid
from tests.support.toy_networks import same

QUICK = "strategy=feddf strategy.distillation.steps=2 model.norm=bn-running rounds=1"


@pytest.fixture
def federate(tmp_path: Path) -> Federate:
    return federate_in(tmp_path)


def feddf(overrides: str = "") -> FedDF:
    strategy = strategy_of(compose(f"{SMALL} output=unused {QUICK} {overrides}"))
    assert isinstance(strategy, FedDF)
    strategy.prepare()
    return strategy


def update_of(strategy: FedDF, level: int, client: int, by: float = 0.05) -> Update:
    """Return a client's update: its level with random noise."""
    submodel = strategy.submodels.at(strategy.levels[level - 1])
    rng = torch.Generator().manual_seed(client)
    state = {
        name: tensor + by * torch.randn(tensor.shape, generator=rng)
        if tensor.is_floating_point() and not name.endswith("running_var")
        else tensor + (1 if tensor.ndim == 0 else 0)
        for name, tensor in extract(strategy.state, submodel.map).items()
    }
    held = submodel.level.slice
    return Update(state, submodel.map, 1.0, client, held, level, strategy.state)


def stepped(strategy: FedDF, *updates: Update) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the aggregated state, and the state after the server's step."""
    aggregator = strategy.aggregator()
    for update in updates:
        aggregator.add(update)
    strategy.round = 1
    mean = aggregator.result(strategy.state)
    return mean, dict(strategy.server_step(mean, strategy.state))


def told(strategy: FedDF) -> dict[str, Any]:
    found: dict[str, Any] = strategy.tally.server["distillation"]
    return found


def bank_of(state: dict[str, Tensor], level: int) -> dict[str, Tensor]:
    return {name: t for name, t in state.items() if name.endswith(f"@level{level}")}


# --- students ----------------------------------------------------------------------------------


def test_a_student_starts_at_the_mean_of_its_level_statistics_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    strategy = feddf()
    one, two = update_of(strategy, 1, 0), update_of(strategy, 1, 1)
    starts: list[dict[str, Tensor]] = []

    def noted(student: Any, *given: Any) -> Any:
        starts.append({name: t.clone() for name, t in student.state_dict().items()})
        return distil(student, *given)

    monkeypatch.setattr(module, "distil", noted)
    mean, after = stepped(strategy, one, two)
    (start,) = starts
    for name in ("conv1.weight", "bn1.running_mean", "linear.bias"):
        expected = (one.state[name].double() + two.state[name].double()) / 2
        torch.testing.assert_close(start[name].double(), expected, rtol=0, atol=1e-6)
    assert not same(bank_of(mean, 1), bank_of(after, 1))


def test_a_level_without_a_reply_keeps_its_model_bit_for_bit() -> None:
    strategy = feddf()
    _, after = stepped(strategy, update_of(strategy, 1, 0), update_of(strategy, 3, 1))
    changed = [
        n for n in (1, 2, 3, 4) if not same(bank_of(after, n), bank_of(dict(strategy.state), n))
    ]
    assert changed == [1, 3]
    assert list(told(strategy)["levels"]) == ["1", "3"]


def test_levels_of_all_sizes_teach_every_student() -> None:
    strategy = feddf()
    small, large = update_of(strategy, 1, 0), update_of(strategy, 4, 1)
    _, alone = stepped(strategy, small)
    _, together = stepped(strategy, small, large)
    assert not same(bank_of(alone, 1), bank_of(together, 1))
    assert told(strategy)["teachers"] == 2


def test_targets_are_the_mean_of_what_each_reply_answers_by_itself() -> None:
    strategy = feddf()
    updates = [update_of(strategy, level, client) for client, level in enumerate((4, 1, 2))]
    replies = Spool()
    for update in updates:
        replies.add(update)
    task, train = strategy.federation.task, strategy.federation.train
    logits = [
        answers(load_network(task, each.slice, each.state), strategy.unlabelled, train).double()
        for each in updates
    ]
    expected = torch.softmax(torch.stack(logits).mean(0), 1)
    found = strategy._ensemble(replies).targets().probabilities
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-6)


def test_the_order_of_replies_changes_no_bit() -> None:
    strategy = feddf()
    updates = [update_of(strategy, level, client) for client, level in enumerate((1, 2, 3, 4, 1))]
    _, one = stepped(strategy, *updates)
    _, other = stepped(strategy, *updates[::-1])
    assert same(one, other)


def test_labels_of_the_examples_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, shuffled = feddf(), feddf()

    def lying(spec: DatasetSpec) -> Examples:
        data: Any = server_data(spec)
        made: Examples = replace(data, labels=torch.full_like(data.labels, 3))
        return made

    monkeypatch.setattr(examples, "server_data", lying)
    del shuffled.unlabelled
    updates = [update_of(plain, level, client) for client, level in enumerate((1, 4))]
    assert same(stepped(plain, *updates)[1], stepped(shuffled, *updates)[1])


def test_a_round_and_a_level_draw_their_own_batches() -> None:
    strategy = feddf()
    update = update_of(strategy, 1, 0)
    _, first = stepped(strategy, update)
    aggregator = strategy.aggregator()
    aggregator.add(update)
    strategy.round = 2
    second = dict(strategy.server_step(aggregator.result(strategy.state), strategy.state))
    assert not same(first, second)


# --- teachers ----------------------------------------------------------------------------------


def poisoned(client: int, message: Message, reply: Message) -> Message:
    """Client 3 sends what is not a number."""
    if client == 3 and message.metadata.message_type == "train":
        arrays = reply.content.array_records["arrays"]
        broken = {k: np.full_like(a.numpy(), np.nan) for k, a in arrays.items() if k == "float32"}
        whole = {k: broken.get(k, a.numpy()) for k, a in arrays.items()}
        reply.content["arrays"] = ArrayRecord({k: Array(a) for k, a in whole.items()})
    return reply


def test_a_refused_reply_is_no_teacher(federate: Federate) -> None:
    _, (line,) = federate(QUICK, InProcessGrid(4, poisoned))
    assert line["clients"]["refused"] == {"non-finite": 1}
    assert line["distillation"]["teachers"] == 3
    assert list(line["distillation"]["levels"]) == ["1", "2", "3"]


def test_a_teacher_whose_answers_are_no_numbers_is_left_out() -> None:
    strategy = feddf()
    wild, good = update_of(strategy, 4, 1), update_of(strategy, 1, 0)
    wild = replace(wild, state={n: t * 1e9 if t.ndim else t for n, t in wild.state.items()})
    _, after = stepped(strategy, good, wild)
    assert told(strategy)["dropped"] == 1
    assert all(tensor.isfinite().all() for tensor in bank_of(after, 1).values())
    _, alone = stepped(strategy, good)
    assert same(bank_of(alone, 1), bank_of(after, 1))


def test_teachers_below_chance_are_dropped_and_without_any_the_mean_stays() -> None:
    strategy = feddf("strategy.validation=0.5 dataset.server=0.5 strategy.drop_below_chance=true")
    update = update_of(strategy, 1, 0)
    data, task, train = strategy.validation, strategy.federation.task, strategy.federation.train
    assert data is not None
    found = answers(load_network(task, update.slice, update.state), numbered(data), train)
    strategy.validation = replace(data, labels=found.argmin(1))  # type: ignore[type-var]
    mean, after = stepped(strategy, update)
    assert (told(strategy)["teachers"], told(strategy)["dropped"]) == (1, 1)
    assert same(mean, after)
    strategy.validation = replace(data, labels=found.argmax(1))  # type: ignore[type-var]
    _, after = stepped(strategy, update)
    assert told(strategy)["dropped"] == 0
    student = told(strategy)["levels"]["1"]
    assert student["validation"] >= 0.1
    assert "best_step" in student


# --- runs --------------------------------------------------------------------------------------


def test_a_resumed_run_ends_as_an_uninterrupted_one(federate: Federate, tmp_path: Path) -> None:
    whole, lines = federate(f"{QUICK} rounds=2 name=whole")
    federate(f"{QUICK} rounds=2 name=half")
    for file in (tmp_path / "half" / "checkpoints").glob("round-000002*"):
        file.unlink()
    again, later = federate(f"resume={tmp_path / 'half'}")
    assert same(dict(again.state), dict(whole.state))
    assert untimed(later[-1]["distillation"]) == untimed(lines[-1]["distillation"])


def test_the_round_s_line_and_the_progress_file_tell_of_it(
    federate: Federate, tmp_path: Path
) -> None:
    _, (line,) = federate(f"{QUICK} name=run")
    found = line["distillation"]
    assert (found["teachers"], found["dropped"], found["examples"]) == (4, 0, 24)
    assert list(found["levels"]) == ["1", "2", "3", "4"]
    for student in found["levels"].values():
        assert student["steps"] == 2
        assert {"loss_start", "loss_end", "seconds"} <= student.keys()
    events = [json.loads(e) for e in (tmp_path / "run" / "progress.jsonl").read_text().splitlines()]
    work = [event for event in events if event["event"] == "work"]
    first = {"event": "work", "round": 1, "what": "asking the teachers", "done": 1, "of": 4}
    assert work[0] == {**first, "loss": line["train"]["loss"]}
    ends = [event["what"] for event in work[1:] if event["done"] == event["of"]]
    assert ends == ["asking the teachers", *(f"distilling level {n} of 4" for n in (1, 2, 3, 4))]


def test_clients_cost_what_they_cost_without_it_and_are_told_nothing_of_it(
    federate: Federate,
) -> None:
    grid = InProcessGrid(4)
    levels = "strategy.ratios=null strategy.widths=[0.35,0.5,0.7,1] strategy.rounding=ceil"
    _, (line,) = federate(f"{QUICK} strategy.drop_below_chance=true strategy.validation=0.5", grid)
    plain = f"strategy=decoupled {levels} rounds=1 model.norm=bn-running dataset.server=0.1"
    _, (other,) = federate(plain)
    macs, expected = (
        {n: part["macs"] for n, part in each["slices"].items()} for each in (line, other)
    )
    assert macs == expected
    works = [Work.read(m.content) for m in grid.sent if m.metadata.message_type == "train"]
    assert [work.settings.keys() & set(module.SERVERS_OWN) for work in works] == [set()] * 4


def test_distilled_students_are_better_than_their_plain_means(
    federate: Federate, one_thread: None
) -> None:
    """Three classes a client: the mean of a level's clients is of networks that disagree."""
    skewed = (
        "dataset.partition=classes dataset.classes_per_client=3 dataset.server=0.2 "
        "dataset.max_train=null dataset.max_test=null fleet.clients=8 clients_per_round=8 rounds=3 "
        "fleet.budgets=[0.5,1] fleet.shares=[1,1] strategy.widths=[0.35,1] strategy.rounding=ceil "
        "train.epochs=8 train.batch_size=16 train.lr=0.05 model.norm=bn-running"
    )
    _, plain = federate(f"strategy=decoupled strategy.ratios=null {skewed}")
    _, distilled = federate(f"strategy=feddf strategy.distillation.steps=60 {skewed}")
    assert distilled[-1]["mean"] > plain[-1]["mean"] + 0.05


@pytest.mark.parametrize("norm", ["bn", "bn-static", "gn"])
def test_networks_with_other_norms_are_distilled_too(norm: str, federate: Federate) -> None:
    strategy, (line,) = federate(f"{QUICK} model.norm={norm} strategy.validation=0.5")
    assert line["distillation"]["dropped"] == 0
    assert all(tensor.isfinite().all() for tensor in strategy.state.values())


def test_texts_are_distilled_too(tmp_path: Path) -> None:
    config = compose(
        "strategy=feddf strategy.distillation.steps=2 strategy.widths=[0.5,1] model=bert-tiny "
        "dataset=docstrings train=bert fleet.budgets=[0.5,1] fleet.shares=[1,1] fleet.clients=4 "
        "clients_per_round=4 dataset.max_train=80 dataset.max_test=20 rounds=1 evaluate.every=0 "
        f"output={tmp_path} name=run"
    )
    strategy = server.run(InProcessGrid(4), config)
    (line,) = RunRecord(tmp_path / "run").metrics()
    assert (line["distillation"]["teachers"], line["distillation"]["examples"]) == (4, 8)
    assert len(strategy.levels) == 2


# --- settings ----------------------------------------------------------------------------------


def test_the_paper_s_settings_are_the_defaults_of_the_class() -> None:
    assert DistillationSettings() == DistillationSettings(
        steps=10_000,
        batch_size=64,
        lr=1e-3,
        clip=5.0,
        temperature=1.0,
        check_every=100,
        patience=1_000,
    )
    settings = FedDFSettings()
    assert (settings.validation, settings.drop_below_chance) == (0.0, False)


def test_the_server_keeps_a_tenth_unless_told_otherwise_or_not_needed(tmp_path: Path) -> None:
    assert compose("strategy=feddf").dataset.server == 0.1
    assert compose("strategy=feddf dataset.server=0.3").dataset.server == 0.3
    assert compose("strategy=feddf strategy.unlabelled.name=mnist").dataset.server is None
    validated = "strategy=feddf strategy.unlabelled.name=mnist strategy.validation=1"
    assert compose(validated).dataset.server == 0.1
    assert compose("strategy=decoupled").dataset.server is None


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        ("dataset.server=0", r"the server keeps nothing of the data set \(dataset.server is 0\)"),
        ("strategy.unlabelled.name=sst2", "strategy: unlabelled: name is sst2, which a network"),
        ("strategy.unlabelled.name=what", "strategy.unlabelled: unknown name 'what'; choose from"),
        ("strategy.validation=1", "validation is 1, which leaves nothing to distil with"),
        ("strategy.validation=2", "validation is 2.0: expected a share, 0 to 1"),
        ("strategy.drop_below_chance=true", "but validation is 0: expected a share above 0"),
        ("strategy.distillation.steps=0", "strategy.distillation: steps is 0: expected at least 1"),
        ("model=transformer-micro dataset=docstrings-words", "docstrings-words is a running text"),
    ],
)
def test_what_cannot_be_distilled_is_refused_before_a_run(overrides: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        compose(f"strategy=feddf {overrides}")


def test_a_path_that_is_not_there_ends_a_run_before_its_first_round(federate: Federate) -> None:
    grid = InProcessGrid(4)
    with pytest.raises(ValueError, match="nowhere does not exist"):
        federate(f"{QUICK} strategy.unlabelled.name=mnist strategy.unlabelled.path=nowhere", grid)
    assert not any(m.metadata.message_type == "train" for m in grid.sent)


def test_a_relative_path_is_of_where_the_run_was_started(tmp_path: Path) -> None:
    found = with_absolute_paths(tmp_path, "strategy.unlabelled.path=mnist dataset.path=null")
    assert found == [f"strategy.unlabelled.path={tmp_path / 'mnist'}", "dataset.path=null"]


def test_replies_are_let_go_of_after_a_round() -> None:
    strategy = feddf()
    stepped(strategy, update_of(strategy, 1, 0))
    assert strategy._replies is None
