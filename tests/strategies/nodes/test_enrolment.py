"""Enrolment: nodes that take part or are left out, by their profiles, at first and later."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Error, Message, RecordDict
from sklearn.datasets import load_digits

from protocol.reading import ProtocolError
from protocol.reports import Profile
from server_app.trained_level import load_level
from strategies import round as base
from strategies.federation import FederationError
from strategies.nodes import enrolment
from tests.support.federations import Federate, federate_in
from tests.support.grids import Fault, InProcessGrid


@pytest.fixture
def federate(tmp_path: Path) -> Federate:
    return federate_in(tmp_path)


def saying(change: Callable[[int, dict[str, Any]], dict[str, Any]]) -> Fault:
    """Clients that say of themselves what `change` makes of it."""

    def fault(client: int, message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "query":
            record = reply.content.config_records["profile"]
            record["json"] = json.dumps(change(client, json.loads(str(record["json"]))))
        return reply

    return fault


def test_clients_that_all_run_other_code_end_the_run_and_say_so(federate: Federate) -> None:
    other = saying(lambda client, said: {**said, "code": "0"})
    with pytest.raises(FederationError, match="server and client run different code"):
        federate("rounds=1", InProcessGrid(4, other))


def test_one_client_of_other_code_is_left_out(federate: Federate) -> None:
    other = saying(lambda client, said: {**said, "code": "0"} if client == 2 else said)
    strategy, lines = federate("rounds=1", InProcessGrid(4, other))
    assert sorted(strategy.clients) == [0, 1, 3]
    (reason,) = lines[0]["left_out"].values()
    assert reason.startswith("server and client run different code ('0' and ")


@pytest.mark.parametrize("key", ["code", "version", "examples", "budget", "\x1b]0;x\x07"])
def test_what_a_client_says_of_itself_commands_no_terminal(
    federate: Federate, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    evil = "\x1b]0;title\x07\x1b[2J\u202e\r" + 50 * "!"
    liars = saying(lambda client, said: {**said, key: evil, "device": evil})
    with pytest.raises((ProtocolError, FederationError)) as raised, caplog.at_level("WARNING"):
        federate("rounds=1", InProcessGrid(4, liars))
    for told in (str(raised.value), *(record.getMessage() for record in caplog.records)):
        assert told.isprintable()
        assert len(told) < 4000
        assert "!!!" in told or "unexpected keyword" in told


def test_of_two_clients_of_one_partition_one_is_left_out(federate: Federate) -> None:
    twins = saying(lambda client, said: {**said, "partition": min(client, 2)})
    strategy, lines = federate("rounds=1", InProcessGrid(4, twins))
    assert sorted(strategy.clients) == [0, 1, 2]
    (reason,) = lines[0]["left_out"].values()
    assert reason.startswith("two nodes say that they hold partition 2: ")


@pytest.mark.parametrize(
    "nonsense",
    [
        {"examples": "many"},
        {"examples": -1},
        {"examples": None},
        {"budget": "x"},
        {"budget": 0},
        {"partition": -3},
        {"partition": "a"},
        {"partition": True},
        {"partitions": 0},
        {"colour": "red"},
    ],
)
def test_a_client_whose_profile_is_none_is_left_out(
    nonsense: dict[str, Any], federate: Federate
) -> None:
    odd = saying(lambda client, said: said | nonsense if client == 2 else said)
    strategy, lines = federate("rounds=1", InProcessGrid(4, odd))
    assert sorted(strategy.clients) == [0, 1, 3]
    assert lines[0]["clients"]["replied"] == 3


def test_more_nodes_than_the_fleet_has_and_one_that_is_left_out(federate: Federate) -> None:
    odd = saying(lambda client, said: said | {"examples": -1} if client == 2 else said)
    strategy, lines = federate("rounds=1", InProcessGrid(5, odd))
    assert sorted(strategy.clients) == [0, 1, 3, 4]
    assert lines[0]["clients"]["replied"] == 4


def test_a_level_is_the_clients_own_whoever_else_is_there(federate: Federate) -> None:
    whole, _ = federate("rounds=1", InProcessGrid(8))
    fewer, _ = federate("rounds=1", InProcessGrid(8, saying(lambda c, said: {**said, "examples": -1}
                                                           if c < 4 else said)))  # fmt: skip
    levels = {number: whole.level_of(client).number for number, client in whole.clients.items()}
    assert levels == {0: 1, 1: 1, 2: 2, 3: 2, 4: 3, 5: 3, 6: 4, 7: 4}
    assert {n: fewer.level_of(c).number for n, c in fewer.clients.items()} == {
        4: 3,
        5: 3,
        6: 4,
        7: 4,
    }


def test_a_short_deadline_is_the_rounds_not_the_first_questions(federate: Federate) -> None:
    grid = InProcessGrid(4)
    federate("rounds=1 deadline=15", grid)
    (first, *_) = (m for m in grid.sent if m.metadata.message_type == "query")
    assert first.metadata.ttl > 500


def test_where_nobody_says_who_it_is_the_reasons_are_told(federate: Federate) -> None:
    mute = saying(lambda client, said: {**said, "examples": "many"})
    with pytest.raises(FederationError, match=r"no client has come: node .*: examples is 'many'"):
        federate("rounds=1", InProcessGrid(4, mute))


class Growing(InProcessGrid):
    """A grid that one more node joins when the first round has begun."""

    def get_node_ids(self) -> list[int]:
        nodes = list(self.contexts)
        begun = any(m.metadata.message_type == "train" for m in self.sent)
        return nodes if begun else nodes[:-1]


@pytest.mark.parametrize("wrong", [{"partition": 0}, {"code": "0"}])
def test_a_wrong_node_that_comes_later_is_left_out(
    wrong: dict[str, Any], federate: Federate
) -> None:
    odd = saying(lambda client, said: said | wrong if client == 4 else said)
    strategy, lines = federate("", Growing(5, odd))
    assert sorted(strategy.clients) == [0, 1, 2, 3]
    assert [line["clients"]["replied"] for line in lines] == [4, 4]
    assert len(strategy.roster.left_out) == 1


def test_a_node_that_comes_later_is_a_client_from_then_on(federate: Federate) -> None:
    strategy, _ = federate("", Growing(5))
    assert sorted(strategy.clients) == [0, 1, 2, 3, 4]


class Shrinking(InProcessGrid):
    """A grid that all but one node leave when the first round is over."""

    def get_node_ids(self) -> list[int]:
        nodes = list(self.contexts)
        trained = sum(m.metadata.message_type == "train" for m in self.sent)
        return nodes if trained < 4 else nodes[:1]


def test_too_few_nodes_end_the_run_and_say_how_many(federate: Federate) -> None:
    with pytest.raises(FederationError, match="round 2: 1 of 4 clients are online, 2 are needed"):
        federate("", Shrinking(4))


def test_predictions_part_the_data_as_the_clients_did(federate: Federate, tmp_path: Path) -> None:
    lost = saying(lambda client, said: said | {"examples": -1} if client == 1 else said)
    federate("rounds=1 name=lost fleet.clients=2 clients_per_round=2", InProcessGrid(3, lost))
    assert load_level(tmp_path / "lost").dataset.clients == 3


# --- devices with files of their own -----------------------------------------------------------


def test_devices_with_files_of_their_own_train_what_they_afford(
    federate: Federate, tmp_path: Path
) -> None:
    images, labels = load_digits(return_X_y=True)
    np.savez(
        tmp_path / "own.npz",
        x=(images.reshape(-1, 8, 8) * 15.9375).astype(np.uint8)[:120],
        y=labels[:120],
    )
    grid = InProcessGrid(2)
    for context, budget in zip(grid.contexts.values(), (0.3, None), strict=True):
        context.node_config.clear()
        context.node_config["data"] = str(tmp_path / "own.npz")
        if budget:
            context.node_config["budget"] = budget
    strategy, lines = federate(
        "rounds=1 fleet.clients=2 clients_per_round=2 missing_levels=warn", grid
    )
    named, measured = strategy.clients.values()
    assert strategy.level_of(named).number == 2
    assert measured.profile.budget is not None
    assert measured.profile.budget > 0
    assert {client.profile.partitions for client in strategy.clients.values()} == {None}
    assert lines[0]["clients"]["replied"] == 2


def test_a_node_that_was_told_nothing_says_what_it_needs(federate: Federate) -> None:
    grid = InProcessGrid(4)
    del list(grid.contexts.values())[1].node_config["num-partitions"]
    strategy, _ = federate("rounds=1", grid)
    assert "expected data=PATH, or both partition-id and num-partitions" in "".join(
        strategy.roster.left_out.values()
    )


# --- what clients are asked besides ------------------------------------------------------------


def test_who_did_not_answer_a_test_is_counted(federate: Federate) -> None:
    def failing(client: int, message: Message, reply: Message) -> Message:
        failed = client == 2 and message.metadata.message_type == "evaluate"
        return Message(Error(2, "no test examples"), reply_to=message) if failed else reply

    _, lines = federate("rounds=1", InProcessGrid(4, failing))
    asked = lines[0]["asked"]
    assert asked["local"]["asked"] == 4
    assert asked["local"]["answered"] == 3
    assert asked["local"]["failed"] == {"raised": 1}
    assert asked["global"]["down"] > asked["local"]["down"] > 0


def test_without_test_parts_no_client_is_asked(federate: Federate) -> None:
    _, lines = federate("rounds=1 dataset.test=0")
    assert set(lines[0]["asked"]) == {"validation"}
    assert "local" not in lines[0]


def test_a_profile_is_read_as_it_was_written() -> None:
    profile = Profile(3, 8, 120, 0.25, "cpu")
    assert Profile.read(RecordDict({"profile": profile.record()})) == profile


# --- who must be there at the start --------------------------------------------------------------


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that do not wait long for more nodes."""
    monkeypatch.setattr(base, "PATIENCE", 1.0)


@pytest.mark.usefixtures("soon")
def test_a_start_with_fewer_clients_than_min_replies_names_stops(federate: Federate) -> None:
    odd = saying(lambda client, said: said | {"examples": -1} if client == 0 else said)
    with pytest.raises(FederationError) as stopped:
        federate("fleet.clients=3 clients_per_round=3 min_replies=1.0", InProcessGrid(2, odd))
    told = str(stopped.value)
    assert "1 of 3 clients have come, but rounds of 3 need 3 (min_replies 1.0)" in told
    assert "node 5: examples is -1" in told
    assert "clients_per_round, or min_replies" in told


@pytest.mark.usefixtures("soon")
def test_rounds_that_sample_few_of_many_need_as_many_as_they_sample(federate: Federate) -> None:
    overrides = "rounds=1 fleet.clients=8 clients_per_round=2 min_replies=1.0"
    _, lines = federate(overrides, InProcessGrid(2))
    assert lines[0]["clients"]["replied"] == 2
    with pytest.raises(FederationError, match="1 of 8 clients have come"):
        federate(overrides, InProcessGrid(1))


@pytest.mark.usefixtures("soon")
def test_by_default_a_run_trains_with_whoever_comes(federate: Federate) -> None:
    _, lines = federate("rounds=1 fleet.clients=20 clients_per_round=20", InProcessGrid(2))
    assert lines[0]["clients"]["replied"] == 2


def test_a_round_needs_the_share_of_the_clients_that_were_asked_for(federate: Federate) -> None:
    with pytest.raises(FederationError, match="round 2: 1 of 4 clients are online, 3 are needed"):
        federate("min_replies=0.75", Shrinking(4))


# --- nodes that are silent, and resumed runs that lack them ---------------------------------------


class Swallowing(InProcessGrid):
    """A grid whose last node does not answer its first few questions."""

    def __init__(self, nodes: int, questions: int) -> None:
        super().__init__(nodes, self.swallow)
        self.nodes, self.left = nodes, questions

    def swallow(self, client: int, message: Message, reply: Message) -> Message | None:
        if message.metadata.message_type == "query" and client == self.nodes - 1 and self.left:
            self.left -= 1
            return None
        return reply


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enrolment, "ASK_AGAIN", (0.2, 0.2, 0.2))


NEVER = 10**9


@pytest.mark.usefixtures("impatient")
def test_a_node_that_is_silent_is_asked_again_and_named(
    federate: Federate, caplog: pytest.LogCaptureFixture
) -> None:
    grid = Swallowing(4, questions=1)
    with caplog.at_level("WARNING", logger="flwr"):
        strategy, _ = federate("rounds=1", grid)
    assert sorted(strategy.clients) == [0, 1, 2, 3]
    silent = strategy.clients[3].node
    assert f"no answer from node {silent}" in caplog.text
    assert "restart its SuperNode" in caplog.text


@pytest.mark.usefixtures("impatient")
def test_a_node_that_never_answers_is_left_out_with_what_to_do(federate: Federate) -> None:
    strategy, lines = federate("rounds=1", Swallowing(4, NEVER))
    assert sorted(strategy.clients) == [0, 1, 2]
    (why,) = strategy.roster.left_out.values()
    assert "online, but no answer" in why
    assert "restart its SuperNode" in why
    assert list(lines[0]["left_out"].values()) == [why]


class OneBehind(InProcessGrid):
    """A grid whose last node sends each reply only when it is given the next message.

    So does a SuperNode that holds the reply of a run which has ended (Flower 1.41 sends one reply
    for each message that it fetches).
    """

    def __init__(self, nodes: int) -> None:
        super().__init__(nodes)
        self.behind = list(self.contexts)[-1]
        self.held: Message | None = None
        self.ready: dict[str, Message] = {}

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = list(messages)
        identities = list(super().push_messages(sent))
        for identity, message in zip(identities, sent, strict=True):
            if message.metadata.dst_node_id == self.behind:
                if self.held is not None:
                    self.ready[self.held.metadata.reply_to_message_id] = self.held
                self.held = self.answer(self.waiting.pop(identity))
        return identities

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        (identity,) = message_ids
        if identity in self.ready:
            return [self.ready.pop(identity)]
        return super().pull_messages([identity])


@pytest.mark.usefixtures("impatient")
def test_a_node_that_is_one_reply_behind_is_left_out_and_no_round_waits_for_it(
    federate: Federate,
) -> None:
    strategy, lines = federate("", OneBehind(4))
    assert sorted(strategy.clients) == [0, 1, 2]
    assert [line["clients"]["replied"] for line in lines] == [3, 3]
    assert "restart its SuperNode" in "".join(strategy.roster.left_out.values())


@pytest.mark.usefixtures("impatient")
def test_a_resumed_run_that_lacks_a_level_stops_and_says_what_to_do(
    federate: Federate, tmp_path: Path
) -> None:
    federate("rounds=1 name=lost")
    resume = f"resume={tmp_path / 'lost'} rounds=2"
    with pytest.raises(FederationError) as stopped:
        federate(resume, Swallowing(4, NEVER))
    told = str(stopped.value)
    assert "no client holds level 4 any more" in told
    assert "node 296: online, but no answer" in told
    assert "missing_levels=warn" in told
    strategy, lines = federate(f"{resume} missing_levels=warn", Swallowing(4, NEVER))
    assert sorted(strategy.clients) == [0, 1, 2]
    assert [line["round"] for line in lines] == [1, 2]
    assert strategy.roster.held == {1, 2, 3, 4}


@pytest.mark.usefixtures("impatient")
def test_a_resumed_run_waits_for_an_answer_to_its_second_question(
    federate: Federate, tmp_path: Path
) -> None:
    whole, _ = federate("rounds=2 train.schedule=constant")
    federate("rounds=1 name=half train.schedule=constant")
    resumed, _ = federate(f"resume={tmp_path / 'half'} rounds=2", Swallowing(4, questions=1))
    assert all(torch.equal(whole.state[name], resumed.state[name]) for name in whole.state)


def test_a_checkpoint_that_does_not_know_its_levels_is_resumed(federate: Federate) -> None:
    strategy, _ = federate("rounds=1")
    old = {name: tensor for name, tensor in strategy.state_dict().items() if name != "held"}
    strategy.load_state_dict(old)
    assert strategy.roster.held == set()


def test_a_level_that_loses_its_last_client_in_a_run_is_told_once(
    federate: Federate, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("WARNING", logger="flwr"):
        federate("rounds=3 min_replies=0.25", Shrinking(4))
    told = [record.getMessage() for record in caplog.records if "no client of" in record.msg]
    assert told == ["round 2: no client of levels 2, 3, 4 is online"]
