"""Numbers and times of enrolled nodes, with scripted nodes and a scripted clock."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import pytest
from flwr.app import Error, RecordDict

from data.spec import DatasetSpec
from protocol.reports import Profile
from strategies.federation import Federation, FleetConfig
from strategies.nodes.enrolment import Client, enrol, wait_for_nodes
from tests.support.scripted import Answer, Clock, Script, ScriptedGrid


def profile(partition: int | None = None, examples: int = 10) -> Profile:
    return Profile(partition, None, examples, None, "cpu")


def saying(profiles: Mapping[int, Profile]) -> Script:
    """Return the script of nodes that say at once what they are; all others are silent."""

    def script(node: int, _: int) -> Answer | None:
        if node not in profiles:
            return None
        return Answer(0, RecordDict({"profile": profiles[node].record()}))

    return script


def enrolled(
    grid: ScriptedGrid,
    known: Mapping[int, Client] | None = None,
    ignored: frozenset[int] = frozenset(),
    patience: float = 60,
    deadline: float = 0,
) -> tuple[dict[int, Client], dict[int, str]]:
    count = max(1, len(grid.nodes))
    federation = Federation(
        dataset=DatasetSpec(clients=count),
        fleet=FleetConfig(clients=count),
        clients_per_round=1,
        deadline=deadline,
        max_examples=1000,
    )
    return enrol(grid, federation, known or {}, ignored, patience)


def numbers(clients: Mapping[int, Client]) -> list[tuple[int, int]]:
    """Return the clients' numbers and nodes, in the order in which the clients are kept."""
    return [(number, client.node) for number, client in clients.items()]


# --- waiting for nodes -------------------------------------------------------------------------


def arriving(clock: Clock, times: list[float]) -> ScriptedGrid:
    """Return a grid whose nodes 1, 2, ... come after so many seconds."""

    class Arriving(ScriptedGrid):
        def get_node_ids(self) -> list[int]:
            return [node for node, at in enumerate(times, 1) if at <= clock.passed]

    return Arriving(clock, [], lambda node, _: None)


def test_nodes_that_are_all_there_are_not_waited_for(clock: Clock) -> None:
    assert wait_for_nodes(arriving(clock, [0, 0]), 2, patience=60) == [1, 2]
    assert clock.slept == []


def test_without_patience_whoever_is_there_will_do(clock: Clock) -> None:
    assert wait_for_nodes(arriving(clock, [0]), 2, patience=0) == [1]
    assert clock.slept == []


def test_the_last_node_wanted_ends_the_wait(clock: Clock) -> None:
    assert wait_for_nodes(arriving(clock, [0, 2.1, 4.1, 5]), 3, patience=60) == [1, 2, 3]
    assert clock.passed == pytest.approx(4.2)  # it is looked five times a second


@pytest.mark.parametrize(
    ("times", "seconds"),
    [
        ([0.0], 10),  # a sixth of the patience, in which no more have come
        ([0.0, 8.0], 18),
        ([8.0], 18),
        ([], 60),  # nobody at all: all of it
    ],
)
def test_a_wait_ends_when_no_more_nodes_come(
    times: list[float], seconds: float, clock: Clock
) -> None:
    assert len(wait_for_nodes(arriving(clock, times), 5, patience=60)) == len(times)
    assert seconds <= clock.passed + 1e-6 < seconds + 0.45


# --- numbers -----------------------------------------------------------------------------------


def test_devices_with_data_of_their_own_are_numbered_by_node_whoever_answers_first(
    clock: Clock,
) -> None:
    delays = {30: 0.0, 10: 2.0, 20: 1.0}
    said = RecordDict({"profile": profile().record()})
    grid = ScriptedGrid(clock, [20, 30, 10], lambda node, _: Answer(delays[node], said))
    clients, left_out = enrolled(grid)
    assert numbers(clients) == [(0, 10), (1, 20), (2, 30)]
    assert left_out == {}


def test_partitions_are_their_holders_numbers_and_devices_come_after_them(clock: Clock) -> None:
    said = {5: profile(), 9: profile(0), 7: profile(1), 8: profile(3), 6: profile()}
    clients, _ = enrolled(ScriptedGrid(clock, said, saying(said)))
    assert numbers(clients) == [(0, 9), (1, 7), (3, 8), (4, 5), (5, 6)]


def test_of_two_nodes_of_one_partition_the_lower_node_is_taken(clock: Clock) -> None:
    said = {9: profile(2), 4: profile(2)}
    clients, left_out = enrolled(ScriptedGrid(clock, said, saying(said)))
    assert numbers(clients) == [(2, 4)]
    assert left_out == {9: "two nodes say that they hold partition 2: 4 and 9"}


def test_who_is_known_or_ignored_is_not_asked_again(clock: Clock) -> None:
    known = {0: Client(0, 1, profile(0))}
    grid = ScriptedGrid(clock, [1, 2, 3], saying({3: profile(1)}))
    clients, left_out = enrolled(grid, known, ignored=frozenset({2}))
    assert numbers(clients) == [(0, 1), (1, 3)]
    assert [node for _, node, _ in grid.sent] == [3]
    assert (left_out, list(known)) == ({}, [0])


def test_a_partition_goes_to_another_node_only_when_its_own_has_gone(clock: Clock) -> None:
    known = {0: Client(0, 1, profile(0)), 1: Client(1, 2, profile(1))}
    said = {3: profile(0), 4: profile(1)}
    clients, left_out = enrolled(ScriptedGrid(clock, [2, 3, 4], saying(said)), known)
    assert numbers(clients) == [(0, 3), (1, 2)]
    assert left_out == {4: "two nodes say that they hold partition 1: 2 and 4"}


def test_a_client_may_have_as_many_examples_as_is_said_and_no_more(clock: Clock) -> None:
    said = {1: profile(0, 1000), 2: profile(1, 1001)}
    clients, left_out = enrolled(ScriptedGrid(clock, said, saying(said)))
    assert numbers(clients) == [(0, 1)]
    assert "examples (see max_examples) is 1001: expected a whole number, 0 to 1000" in left_out[2]


def test_a_node_that_raises_is_left_out_with_its_reason_and_not_asked_again(clock: Clock) -> None:
    grid = ScriptedGrid(clock, [1], lambda node, _: Answer(0, Error(2, "no data")))
    assert enrolled(grid) == ({}, {1: "raised no data"})
    assert len(grid.sent) == 1


# --- silence -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("patience", "deadline", "time_to_live"),
    [
        (0.5, 15, 600 + 1),  # at first a simulation's workers must start
        (0, 15, 15 + 1),
        (0, 0, 20 + 1),
    ],
)
def test_a_node_has_ten_minutes_to_answer_at_first_and_later_a_rounds_time(
    patience: float, deadline: float, time_to_live: float, clock: Clock
) -> None:
    grid = ScriptedGrid(clock, [1], saying({1: profile(0)}))
    enrolled(grid, patience=patience, deadline=deadline)
    ((_, _, question),) = grid.sent
    assert question.metadata.ttl == time_to_live


def test_where_all_are_silent_at_first_they_are_given_up_after_ten_minutes(clock: Clock) -> None:
    grid = ScriptedGrid(clock, [1, 2], saying({}))
    clients, left_out = enrolled(grid)
    assert clients == {}
    assert all(why.startswith("online, but no answer in 600 s: ") for why in left_out.values())
    assert [grid.asked(1), grid.asked(2)] == [[0], [0]]


def test_one_that_is_silent_when_others_answer_is_asked_four_times(clock: Clock) -> None:
    grid = ScriptedGrid(clock, [1, 2], saying({1: profile(0)}))
    clients, left_out = enrolled(grid)
    assert numbers(clients) == [(0, 1)]
    assert grid.asked(2) == pytest.approx([0, 20, 60, 140], abs=0.6)
    assert grid.asked(1) == [0]
    assert clock.passed == pytest.approx(300, abs=0.6)
    assert list(left_out) == [2]


def test_one_that_comes_later_and_is_silent_has_a_minute(clock: Clock) -> None:
    grid = ScriptedGrid(clock, [1], saying({}))
    _, left_out = enrolled(grid, patience=0)
    assert left_out[1].startswith("online, but no answer in 60 s: ")
    assert grid.asked(1) == [0, 20]


def test_one_that_is_silent_is_asked_again_as_long_as_there_is_time(clock: Clock) -> None:
    grid = ScriptedGrid(clock, [1], saying({}))
    enrolled(grid, patience=0, deadline=20.5)
    assert grid.asked(1) == [0, 20]
    assert clock.passed == 20.5


def test_one_that_fails_at_once_is_asked_again_after_a_pause(clock: Clock) -> None:
    """A node that is restarted is gone for a while."""
    gone, there = Error(5, "restarting"), RecordDict({"profile": profile(0).record()})
    grid = ScriptedGrid(clock, [1], lambda node, turn: Answer(0, gone if turn < 3 else there))
    clients, left_out = enrolled(grid)
    assert numbers(clients) == [(0, 1)]
    assert left_out == {}
    assert grid.asked(1) == pytest.approx([0, 0, 40], abs=0.1)


def test_one_that_has_gone_while_it_was_silent_is_not_left_out(clock: Clock) -> None:
    def leaving(node: int, turn: int) -> Answer | None:
        grid.nodes = [1]
        return Answer(0, RecordDict({"profile": profile(0).record()})) if node == 1 else None

    grid = ScriptedGrid(clock, [1, 2], leaving)
    clients, left_out = enrolled(grid)
    assert numbers(clients) == [(0, 1)]
    assert left_out == {}
    assert grid.asked(2) == [0]


@pytest.mark.parametrize(("silent", "named"), [(5, "2, 3, 4, 5, 6 in"), (6, "2, 3, 4, 5, 6, ...")])
def test_the_first_five_of_the_silent_are_named(
    silent: int, named: str, clock: Clock, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)  # to pytest
    grid = ScriptedGrid(clock, range(1, silent + 2), saying({1: profile(0)}))
    enrolled(grid)
    first, *_ = caplog.messages
    assert first.startswith(f"no answer from node {named}")
    assert "in 20 s, asking again" in first
