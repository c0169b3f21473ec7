"""The roster of a run: online clients, clients to ask again, and too few clients."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from flwr.app import RecordDict

from data.spec import DatasetSpec
from protocol.reports import Profile
from strategies.federation import Federation, FederationError, FleetConfig
from strategies.nodes.roster import Roster
from tests.support.scripted import Answer, Clock, Script, ScriptedGrid


def roster(clients: int = 4, min_replies: float | None = None) -> Roster:
    federation = Federation(
        dataset=DatasetSpec(clients=clients),
        fleet=FleetConfig(clients=clients),
        clients_per_round=clients,
        min_replies=min_replies,
    )
    return Roster(federation, lambda grid, clients: {})


def holding(partitions: Mapping[int, int]) -> Script:
    """Return the script of nodes that say at once which partition they hold; others are silent."""

    def script(node: int, _: int) -> Answer | None:
        if node not in partitions:
            return None
        profile = Profile(partitions[node], 8, 10, None, "cpu")
        return Answer(0, RecordDict({"profile": profile.record()}))

    return script


def test_a_node_that_was_left_out_is_asked_again_when_it_comes_back(clock: Clock) -> None:
    grid = ScriptedGrid(clock, [1, 2, 3], holding({1: 0, 2: 1, 3: 1}))
    own = roster()
    own.enrol(grid, patience=1)
    assert list(own.left_out) == [3]
    assert own.online(grid) == [0, 1]
    assert len(grid.asked(3)) == 1  # it is still there, and still no client
    grid.nodes = [1, 3]
    assert own.online(grid) == [0]
    grid.nodes = [1]
    assert own.online(grid) == [0]
    assert own.left_out == {}
    grid.nodes = [1, 3]
    assert own.online(grid) == [0, 1]
    assert own.clients[1].node == 3


def test_the_first_five_that_were_left_out_are_named(clock: Clock) -> None:
    own = roster(clients=8, min_replies=1.0)
    own.left_out = dict.fromkeys(range(5), "broken")
    own.enrol(ScriptedGrid(clock, [9], holding({9: 0})), patience=1)
    with pytest.raises(FederationError, match=r"1 of 8 clients .* need 8 .*node 4: broken\. Start"):
        own.require_clients()
    own.left_out[5] = "broken"
    with pytest.raises(FederationError, match=r"node 4: broken; and 1 more nodes\. Start"):
        own.require_clients()


def test_without_anyone_the_reason_is_told() -> None:
    with pytest.raises(FederationError, match="no client has come: no node is online"):
        roster().require_clients()


def test_a_round_needs_half_of_whoever_came_or_what_is_named(clock: Clock) -> None:
    grid = ScriptedGrid(clock, [1, 2, 3, 4], holding({1: 0, 2: 1, 3: 2, 4: 3}))
    half, most = roster(), roster(min_replies=0.75)
    for each in (half, most):
        each.enrol(grid, patience=1)
    half.require_online(3, 2)
    most.require_online(3, 3)
    with pytest.raises(FederationError, match="round 3: 1 of 4 clients are online, 2 are needed"):
        half.require_online(3, 1)
    with pytest.raises(FederationError, match="round 3: 2 of 4 clients are online, 3 are needed"):
        most.require_online(3, 2)


def test_whoever_did_not_answer_is_not_asked_for_more(clock: Clock) -> None:
    own = roster()
    own.enrol(ScriptedGrid(clock, [1, 2], holding({1: 0, 2: 1})), patience=1)
    own.unanswered = {0}
    assert [client.number for client in own.answering] == [1]


def test_a_level_that_has_lost_its_clients_is_told_once(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    own = roster()
    for round, there in enumerate(({1, 2}, {1}, {1}, {1, 2}, {2}), 1):  # noqa: A001
        own.note(round, there)
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "round 2: no client of level 2 is online",
        "round 5: no client of level 1 is online",
    ]
    with pytest.raises(FederationError, match="no client holds level 1 any more"):
        own.require_levels({2})
    own.require_levels({1, 2, 3})
