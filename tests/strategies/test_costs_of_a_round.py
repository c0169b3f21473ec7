"""A round's record of its costs: MACs and seconds by level, and each client's training."""

from __future__ import annotations

from pathlib import Path

import pytest
from flwr.app import Error, Message

from protocol.reports import Trained
from server_app.record.metrics import numbers
from strategies.replies import Tally
from tests.support.federations import Federate, federate_in
from tests.support.grids import InProcessGrid
from tests.support.methods import TwiceARound, register

# ResNet-20 on 8 x 8 images of one channel, by hand. At full width: the stem 64 * 9 * 16;
# six convolutions of 64 * 9 * 16 * 16; of each further stage a first one, five more and the
# shortcut's projection; the head 64 * 10.
FULL = (
    64 * 9 * 16
    + 6 * 64 * 9 * 16 * 16
    + (16 * 9 * 16 * 32 + 5 * 16 * 9 * 32 * 32 + 16 * 16 * 32)
    + (4 * 9 * 32 * 64 + 5 * 4 * 9 * 64 * 64 + 4 * 32 * 64)
    + 64 * 10
)
HALF = (
    64 * 9 * 8
    + 6 * 64 * 9 * 8 * 8
    + (16 * 9 * 8 * 16 + 5 * 16 * 9 * 16 * 16 + 16 * 8 * 16)
    + (4 * 9 * 16 * 32 + 5 * 4 * 9 * 32 * 32 + 4 * 16 * 32)
    + 32 * 10
)
WIDTHS = "rounds=1 train.epochs=2 strategy.widths=[0.125,0.25,0.5,1]"


@pytest.fixture
def federate(tmp_path: Path) -> Federate:
    return federate_in(tmp_path)


def test_a_level_s_macs_are_three_forward_passes_of_each_example_in_each_epoch(
    federate: Federate,
) -> None:
    _, (line,) = federate(WIDTHS)
    assert {client: own["level"] for client, own in line["trained"].items()} == {
        "0": 1, "1": 2, "2": 3, "3": 4,
    }  # fmt: skip
    examples = {client: own["examples"] for client, own in line["trained"].items()}
    assert examples == {"0": 48, "1": 48, "2": 48, "3": 48}
    assert line["slices"]["3"]["macs"] == 3 * HALF * 48 * 2
    assert line["slices"]["4"]["macs"] == 3 * FULL * 48 * 2


def test_what_is_not_taken_is_not_counted(federate: Federate) -> None:
    def silent(client: int, message: Message, reply: Message) -> Message:
        failed = client == 2 and message.metadata.message_type == "train"
        return Message(Error(2, "no"), reply_to=message) if failed else reply

    _, (line,) = federate(WIDTHS, InProcessGrid(4, silent))
    assert list(line["trained"]) == ["0", "1", "3"]
    assert (line["slices"]["3"]["macs"], line["slices"]["3"]["device_seconds"]) == (0, 0)


def test_device_seconds_are_the_sum_over_clients_and_seconds_the_slowest() -> None:
    tally = Tally(3)
    for client, seconds in ((7, 2.0), (3, 5.0), (5, 1.0)):
        level = 1 if client == 5 else 2
        tally.accept(client, level, Trained(10 * client, 0.5, seconds), macs=100)
    slices = tally.metrics()["slices"]
    two = {key: slices["2"][key] for key in ("replied", "seconds", "device_seconds", "macs")}
    assert two == {"replied": 2, "seconds": 5.0, "device_seconds": 7.0, "macs": 200}
    assert (slices["1"]["device_seconds"], slices["1"]["macs"]) == (1.0, 100)
    assert list(tally.metrics()["trained"].items()) == [
        ("3", {"level": 2, "examples": 30, "seconds": 5.0}),
        ("5", {"level": 1, "examples": 50, "seconds": 1.0}),
        ("7", {"level": 2, "examples": 70, "seconds": 2.0}),
    ]


def test_a_client_with_two_slices_has_the_larger_one_s_level_and_the_sums(
    federate: Federate, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(monkeypatch, TwiceARound)
    _, (line,) = federate("rounds=1 strategy=decoupled strategy.name=twice-a-round")
    assert (line["trained"]["0"]["level"], line["trained"]["0"]["examples"]) == (4, 96)
    assert line["clients"]["replied"] == 5


def test_each_client_s_scores_are_kept_and_their_mean_is_what_is_shown(federate: Federate) -> None:
    _, (line,) = federate("rounds=1")
    assert {"local", "global"} <= line["scores"].keys()
    for kind, by_client in line["scores"].items():
        assert list(by_client) == ["0", "1", "2", "3"]
        assert line[kind] == pytest.approx(sum(by_client.values()) / 4)


def test_single_clients_are_no_events(federate: Federate) -> None:
    _, (line,) = federate("rounds=1")
    tags = [tag for tag, _ in numbers(line)]
    assert {"slices/1/macs", "slices/1/device_seconds", "local"} <= set(tags)
    assert [tag for tag in tags if tag.startswith(("trained", "scores"))] == []


def test_a_round_without_clients_tests_has_no_scores(federate: Federate) -> None:
    _, (first, _) = federate("rounds=2")
    assert "scores" not in first
