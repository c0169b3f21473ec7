"""Clients' own tests of their trained slices, before averaging (FedFA, section 5.2)."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from flwr.app import Message, MetricRecord, RecordDict

from data.clients import client_data
from models.loading import form_of, load_network
from protocol.arrays import unpack
from protocol.reading import ProtocolError
from protocol.reports import Personal, Trained
from protocol.work import Work
from server_app.config.composing import ConfigError, compose
from strategies.replies import Tally
from tests.support.federations import federate_in, untimed
from tests.support.grids import InProcessGrid, no_fault
from training.local_training import LocalTraining
from training.testing import evaluate, with_statistics_after_training

FAST = "rounds=1 dataset.max_train=200"


def test_the_test_changes_nothing_that_is_trained(tmp_path: Path) -> None:
    federate = federate_in(tmp_path)
    for norm in ("bn", "bn-running", "bn-static"):
        plain, lines = federate(f"{FAST} model.norm={norm} evaluate.personal_every=null")
        asked, told = federate(f"{FAST} model.norm={norm} evaluate.personal_every=0")
        assert all(plain.state[name].equal(asked.state[name]) for name in plain.state)
        assert "personal" not in lines[0]
        (line,) = told
        personal = line.pop("personal")
        assert {"accuracy", "loss", "levels", "scores"} == set(personal)
        assert set(untimed(line)) == set(untimed(lines[0]))


@pytest.mark.parametrize("masked", [True, False])
def test_it_is_of_the_reply_on_the_client_s_own_test_part(tmp_path: Path, masked: bool) -> None:
    """Test each reply again, outside of the client, with its statistics and its classes."""
    taken: dict[int, tuple[Work, RecordDict]] = {}

    def noted(client: int, message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "train":
            taken[client] = Work.read(message.content), reply.content
        return reply

    more = "dataset.partition=classes dataset.local_test=global model.norm=bn-static"
    more += f" strategy.masked_loss={str(masked).lower()} evaluate.personal_every=1"
    strategy, (line,) = federate_in(tmp_path)(f"{FAST} {more}", InProcessGrid(4, noted))
    accuracies = {}
    for client, (work, content) in taken.items():
        state = unpack(content.array_records["arrays"], form_of(work.task, work.slice))
        net = load_network(work.task, work.slice, state)
        own = client_data(work.dataset, client)
        net = with_statistics_after_training(net, own.train, work.train, "own")
        has = torch.bincount(own.train.labels, minlength=10) > 0

        def answers(logits: list[torch.Tensor], has: torch.Tensor = has) -> list[torch.Tensor]:
            return [each * has if masked else each for each in logits]

        (report,) = evaluate(net, own.test, work.train, answers_of=answers)
        told = Trained.read(content).personal
        assert told is not None
        assert told.loss == pytest.approx(report.loss, rel=1e-5)
        accuracies[client] = report.accuracy
    assert line["personal"]["accuracy"] == pytest.approx(fmean(accuracies.values()))
    assert line["personal"]["scores"] == pytest.approx({str(n): a for n, a in accuracies.items()})
    own_level = {str(strategy.level_of(each).number): accuracies[n]
                 for n, each in strategy.clients.items()}  # fmt: skip
    found = {level: each["accuracy"] for level, each in line["personal"]["levels"].items()}
    assert found == pytest.approx(own_level)


def test_it_is_made_when_it_is_due() -> None:
    def due(every: str) -> list[int]:
        config = compose(f"rounds=5 evaluate.personal_every={every}")
        return [number for number in range(1, 6) if config.tests_personally(0, number)]

    assert due("null") == []
    assert due("0") == [5]
    assert due("2") == [2, 4, 5]
    with pytest.raises(ConfigError, match="personal_every is 1, but clients have nothing to test"):
        compose("evaluate.personal_every=1 dataset.test=0")
    assert compose("evaluate.personal_every=1 dataset.test=0 dataset.local_test=global")
    with pytest.raises(ConfigError, match="personal_every is -1: expected 0 or more"):
        compose("evaluate.personal_every=-1")


def test_attackers_are_not_asked_and_their_word_does_not_count(tmp_path: Path) -> None:
    def boasting(client: int, message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "train":
            reply.content.metric_records["metrics"]["personal"] = [1.0, 0.0]
        return no_fault(client, message, reply)

    attack = "fleet.attack.kind=amplified fleet.attack.share=0.5 evaluate.personal_every=1"
    strategy, (line,) = federate_in(tmp_path)(f"{FAST} {attack}", InProcessGrid(4, boasting))
    others = {str(number) for number in range(4)} - {str(n) for n in strategy.federation.attackers}
    assert set(line["personal"]["scores"]) == others


def test_texts_have_a_perplexity_of_each_client() -> None:
    tally = Tally(2, language=True)
    tally.personal = {(1, 0): (2, Personal(0.5, 1.0)), (0, 0): (1, Personal(0.25, 3.0))}
    found = tally.metrics()["personal"]
    assert found["accuracy"] == 0.375
    assert found["loss"] == 2.0
    assert found["perplexity"] == pytest.approx((math.e + math.e**3) / 2)
    assert found["levels"]["2"]["perplexity"] == pytest.approx(math.e)
    assert tally.record()["personal"] == 0.375


@pytest.mark.parametrize("given", [0.5, [0.5], [0.5, 1.0, 2.0], [1.5, 1.0], [float("nan"), 1.0]])
def test_a_report_that_nobody_can_have_meant_is_refused(given: Any) -> None:
    metrics = MetricRecord({"num-examples": 1, "loss": 1.0, "seconds": 1.0, "personal": given})
    with pytest.raises(ProtocolError):
        Trained.read(RecordDict({"metrics": metrics}))


def test_a_report_is_read_back_equal() -> None:
    trained = Trained(3, 1.0, 2.0, personal=Personal(0.5, 0.25))
    assert Trained.read(RecordDict({"metrics": trained.record()})) == trained


def test_by_default_the_logits_count_as_they_are() -> None:
    logits = [torch.ones(2, 3)]
    assert LocalTraining.answers(None, logits) is logits  # type: ignore[arg-type]


def test_a_run_s_summary_and_page_have_it(tmp_path: Path) -> None:
    federate_in(tmp_path)(f"{FAST} evaluate.personal_every=0 name=run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert 0 <= summary["personal"] <= 1
    assert all(0 <= level["personal"] <= 1 for level in summary["levels"].values())
    page = (tmp_path / "run" / "report.html").read_text()
    assert "what each client has trained on its own test part" in page


@pytest.mark.parametrize("loss", [1.7e308, float("inf"), float("nan"), -1.0])
def test_a_loss_that_no_mean_can_take_is_refused(loss: float) -> None:
    record = Trained(1, 0.5, 1.0, personal=Personal(0.5, loss)).record()
    with pytest.raises(ProtocolError, match="loss is"):
        Trained.read(RecordDict({"metrics": record}))
