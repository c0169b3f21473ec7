"""Clients test their own level on their validation part, by which rounds are compared."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from flwr.app import Message

from client_app.app import own_data
from protocol.work import Work
from tests.support.federations import Federate, federate_in
from tests.support.grids import Fault, InProcessGrid


@pytest.fixture
def federate(tmp_path: Path, one_thread: None) -> Federate:
    return federate_in(tmp_path)


def is_validation(message: Message) -> bool:
    kind = message.metadata.message_type
    return kind == "evaluate" and Work.read(message.content).part == "validation"


def scoring(*scores: float | None) -> Fault:
    """Return a fault that gives each client a validation score; None is silence."""

    def scored(client: int, message: Message, reply: Message) -> Message | None:
        if is_validation(message):
            if (score := scores[client]) is None:
                return None
            reply.content.metric_records["metrics"]["accuracy"] = [score]
        return reply

    return scored


def test_the_score_is_the_mean_over_levels_of_the_mean_over_their_clients(
    federate: Federate,
) -> None:
    """Five clients are one, one, two and one of the levels: each level counts alike."""
    grid = InProcessGrid(5, scoring(0.2, 0.4, 0.5, 0.9, 1.0))
    _, lines = federate("fleet.clients=5 clients_per_round=5 rounds=1", grid)
    by_level = {level: scores["validation"] for level, scores in lines[0]["levels"].items()}
    assert by_level == {"1": 0.2, "2": 0.4, "3": 0.7, "4": 1.0}
    assert lines[0]["validation"] == pytest.approx((0.2 + 0.4 + 0.7 + 1.0) / 4)
    assert lines[0]["asked"]["validation"]["answered"] == 5


def test_a_client_tests_its_own_level_on_its_validation_part(federate: Federate) -> None:
    examples: list[tuple[int, int]] = []

    def counted(client: int, message: Message, reply: Message) -> Message:
        if is_validation(message):
            work = Work.read(message.content)
            data = own_data(work, grid.contexts[message.metadata.dst_node_id])
            told = int(str(reply.content.metric_records["metrics"]["num-examples"]))
            examples.append((told, len(data.validation)))
            assert len(data.validation) != len(data.test)
            assert work.slice == strategy_levels[client]
        return reply

    grid = InProcessGrid(4, counted)
    widths = "strategy.widths=[0.25,0.5,0.75,1]"
    made, _ = federate(f"rounds=1 dataset.validation=0.2 checkpoint.best=false {widths}")
    strategy_levels = [level.slice for level in made.levels]
    federate(f"rounds=1 dataset.validation=0.2 {widths}", grid)
    assert len(examples) == 4
    assert all(told == held for told, held in examples)


def test_a_round_without_a_level_s_score_has_none(
    federate: Federate, tmp_path: Path, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A round that lacks its weakest level would look better than it is."""
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)  # to pytest
    grid = InProcessGrid(4, scoring(None, 0.5, 0.6, 0.7))
    _, lines = federate("name=mine evaluate.every=1 deadline=3", grid)
    assert all("validation" not in line for line in lines)
    assert lines[0]["levels"]["2"]["validation"] == 0.5
    told = [text for text in caplog.messages if "no validation score after" in text]
    assert len(told) == 1
    assert "3 of 4 clients answered" in told[0]
    assert not (tmp_path / "mine" / "checkpoints" / "best.safetensors").exists()


SMALL_FIRST = "dataset.partition=shares dataset.shares=[1,10,10,10] evaluate.every=1 "
"""The 7 examples of the first client, the only one of level 1, are too few for a tenth."""


def test_levels_without_validation_examples_do_not_keep_rounds_from_being_compared(
    federate: Federate, tmp_path: Path, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)  # to pytest
    grid = InProcessGrid(4, scoring(None, 0.5, 0.6, 0.7))
    _, lines = federate(f"name=mine {SMALL_FIRST}", grid)
    asked = lines[0]["asked"]["validation"]
    assert (asked["asked"], asked["without"], asked["answered"]) == (3, 1, 3)
    assert len([message for message in grid.sent if is_validation(message)]) == 3 * len(lines)
    assert lines[0]["validation"] == pytest.approx((0.5 + 0.6 + 0.7) / 3)
    assert (tmp_path / "mine" / "checkpoints" / "best.safetensors").exists()
    assert "1 of 4 clients have no validation part" in caplog.text
    assert "no client of level 1 has validation examples" in caplog.text


def test_where_nobody_can_validate_that_is_said_once_and_nobody_is_asked(
    federate: Federate, tmp_path: Path, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)  # to pytest
    grid = InProcessGrid(4)
    _, lines = federate("name=mine dataset.max_train=36 evaluate.every=1", grid)
    assert lines[0]["asked"]["validation"]["without"] == 4
    assert {each.metadata.message_type for each in grid.sent} == {"query", "train"}
    assert not (tmp_path / "mine" / "checkpoints" / "best.safetensors").exists()
    said = [text for text in caplog.messages if "best checkpoint" in text]
    assert len(said) == 1
    assert said[0].startswith("no client has validation examples: no best checkpoint is kept")


def test_clients_validate_when_the_server_tests_and_only_for_a_best_checkpoint(
    federate: Federate, tmp_path: Path, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)  # to pytest
    _, lines = federate("rounds=3 evaluate.every=2")
    assert ["validation" in line["asked"] for line in lines] == [False, True, True]
    assert not [text for text in caplog.messages if "no best checkpoint" in text]
    for number, off in enumerate(("checkpoint.best=false", "dataset.validation=0")):
        grid = InProcessGrid(4)
        _, lines = federate(f"name=off{number} evaluate.every=1 {off}", grid)
        assert not [message for message in grid.sent if is_validation(message)]
        assert all("validation" not in line for line in lines)
        assert not (tmp_path / f"off{number}" / "checkpoints" / "best.safetensors").exists()
    told = [text for text in caplog.messages if "no best checkpoint" in text]
    assert told == ["dataset.validation is 0: no best checkpoint is kept, only the newest"]


@pytest.mark.parametrize("strategy", ["scalefl", "heterofl model.norm=bn-static"])
def test_validating_changes_no_bit_of_what_is_trained(strategy: str, federate: Federate) -> None:
    overrides = f"strategy={strategy} evaluate.every=1 train.augment=true dataset.max_train=120 "
    overrides += "checkpoint.best="
    with_best, lines = federate(f"{overrides}true")
    without, others = federate(f"{overrides}false")
    assert ["validation" in line for line in lines + others] == [True, True, False, False]
    assert with_best.state.keys() == without.state.keys()
    assert all(torch.equal(with_best.state[k], v) for k, v in without.state.items())
    assert [line["mean"] for line in lines] == [line["mean"] for line in others]
