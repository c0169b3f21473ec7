"""Messages out and replies in, with a clock that moves only during sleeps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from flwr.app import Error, Message, RecordDict

from strategies.nodes.exchange import ALLOWANCE, Reply, stream
from tests.support.scripted import Answer, Clock, Script, ScriptedGrid, after, letters, message


def to_nodes(*nodes: int) -> Iterator[tuple[int, Message]]:
    return ((node, message(node)) for node in nodes)


def outcomes(replies: Iterable[Reply[int]]) -> list[tuple[int, str | None]]:
    return [(reply.to, reply.failure) for reply in replies]


def test_replies_are_given_as_they_arrive(clock: Clock) -> None:
    grid = ScriptedGrid(clock, [], after({1: 3, 2: 1, 3: 2}))
    assert outcomes(stream(grid, to_nodes(1, 2, 3), 16)) == [(2, None), (3, None), (1, None)]
    assert 3 <= clock.passed < 3.1


def test_a_message_is_made_when_there_is_room_for_it(clock: Clock) -> None:
    made: list[int] = []

    def outgoing() -> Iterator[tuple[int, Message]]:
        for node in range(1, 6):
            made.append(node)
            yield node, message(node)

    grid = ScriptedGrid(clock, [], after({node: node for node in range(1, 6)}))
    replies = stream(grid, outgoing(), 2)
    assert next(replies).to == 1
    assert made == [1, 2]
    assert [reply.to for reply in replies] == [2, 3, 4, 5]
    assert grid.most_waiting == 2


def test_whoever_has_not_answered_at_the_deadline_is_late(clock: Clock) -> None:
    grid = ScriptedGrid(clock, [], after({1: 1, 2: 100}))
    found = outcomes(stream(grid, to_nodes(1, 2, 3), 16, deadline=10))
    assert found == [(1, None), (2, "late"), (3, "late")]
    assert clock.passed == 10


def test_without_a_deadline_an_answer_is_waited_for(clock: Clock) -> None:
    grid = ScriptedGrid(clock, [], after({1: 5000}))
    question = message(1)
    time_to_live = question.metadata.ttl
    assert outcomes(stream(grid, [(1, question)], 16)) == [(1, None)]
    assert question.metadata.ttl == time_to_live


def test_what_was_not_sent_by_the_deadline_is_not_late(clock: Clock) -> None:
    grid = ScriptedGrid(clock, [], after({}))
    assert outcomes(stream(grid, to_nodes(1, 2), 1, deadline=10)) == [(1, "late")]
    assert grid.asked(2) == []


def test_at_the_deadline_itself_nothing_more_is_sent(clock: Clock) -> None:
    grid = ScriptedGrid(clock, [], after({}))
    grid.seconds_to_send = 10
    assert outcomes(stream(grid, to_nodes(1, 2), 16, deadline=10)) == [(1, "late")]


def test_a_message_expires_a_second_after_the_deadline(clock: Clock) -> None:
    grid = ScriptedGrid(clock, [], after({1: 9.5, 2: 0}))
    assert len(list(stream(grid, to_nodes(1, 2), 1, deadline=10))) == 2
    (_, _, first), (when, _, second) = grid.sent
    assert first.metadata.ttl == 11
    assert 9.5 <= when < 10
    assert second.metadata.ttl == pytest.approx(11 - when)


@pytest.mark.parametrize(
    ("answers", "late_after"),
    [
        ({1: 1}, 1 + 5),  # five seconds of silence are more than twice one second
        ({1: 4}, 4 + 8),  # twice the four seconds of the first answer are more than five
        ({1: 4, 2: 10}, 10 + 8),  # the second answer took longer, but the first one counts
    ],
)
def test_who_is_silent_after_others_have_answered_is_late(
    answers: dict[int, float], late_after: float, clock: Clock
) -> None:
    grid = ScriptedGrid(clock, [], after(answers))
    found = outcomes(stream(grid, to_nodes(1, 2, 3), 16, deadline=1000, silence=5))
    assert found[-1] == (3, "late")
    assert late_after <= clock.passed < late_after + 1.2


def test_where_nobody_has_answered_silence_is_borne_until_the_deadline(clock: Clock) -> None:
    grid = ScriptedGrid(clock, [], after({}))
    assert outcomes(stream(grid, to_nodes(1), 16, deadline=50, silence=5)) == [(1, "late")]
    assert clock.passed == 50


def test_the_longer_nothing_has_come_the_longer_are_the_pauses(clock: Clock) -> None:
    list(stream(ScriptedGrid(clock, [], after({1: 100})), to_nodes(1), 16))
    pauses = dict(clock.slept)
    assert clock.slept[0] == (0, 0.01)
    assert max(pauses.values()) == 0.5
    (at_ten,) = (pause for when, pause in pauses.items() if when <= 10 < when + pause)
    assert at_ten == pytest.approx(0.2, abs=0.01)  # 2 % of what was waited
    list(stream(ScriptedGrid(clock, [], after({1: 0.1})), to_nodes(1), 16))
    assert clock.slept[-1][1] == 0.01  # an answer starts it anew


def test_pauses_are_four_times_as_long_as_a_look_for_replies(clock: Clock) -> None:
    grid = ScriptedGrid(clock, [], after({1: 1}))
    grid.seconds_to_look = 0.05
    list(stream(grid, to_nodes(1), 16))
    assert [pause for _, pause in clock.slept] == pytest.approx([0.2] * len(clock.slept))


def test_a_node_that_cannot_be_reached_is_told_and_others_are_asked(clock: Clock) -> None:
    grid = ScriptedGrid(clock, [], after({1: 0, 3: 0}))
    grid.unreachable = {2}
    assert sorted(outcomes(stream(grid, to_nodes(1, 2, 3), 1))) == [
        (1, None), (2, "unreachable"), (3, None),
    ]  # fmt: skip


def replying(content: RecordDict | Error) -> Script:
    return lambda node, _: Answer(0, content)


@pytest.mark.parametrize(
    ("code", "word"),
    [
        (0, "crashed"),
        (1, "app-not-loaded"),
        (2, "raised"),
        (3, "expired"),
        (4, "reply-lost"),
        (5, "node-gone"),
        (6, "mod-refused"),
        (7, "bad-app"),
        (8, "crashed"),
        (99, "error-99"),
    ],
)
def test_each_of_flowers_errors_has_a_word(code: int, word: str, clock: Clock) -> None:
    grid = ScriptedGrid(clock, [], replying(Error(code, "why")))
    (reply,) = stream(grid, to_nodes(1), 16)
    assert (reply.message, reply.failure, reply.detail, reply.refused) == (None, word, "why", False)


@pytest.mark.parametrize(
    ("reason", "detail"),
    [
        ("Traceback:\n  line 1\nValueError: no data\n\n", "ValueError: no data"),
        (None, ""),
        ("x" + 19_999 * "\n", "x"),
        ("x" + 20_000 * "\n", ""),  # of a longer text only the end is looked at
    ],
)
def test_of_an_errors_reason_the_last_line_that_says_something_is_told(
    reason: str | None, detail: str, clock: Clock
) -> None:
    (reply,) = stream(ScriptedGrid(clock, [], replying(Error(2, reason))), to_nodes(1), 16)
    assert reply.detail == detail


def test_a_reply_may_have_512_kib_more_than_its_message(clock: Clock) -> None:
    assert ALLOWANCE == 512 * 1024
    grid = ScriptedGrid(clock, [], replying(letters(1000 + ALLOWANCE)))
    question = Message(letters(1000), dst_node_id=1, message_type="query")
    (reply,) = stream(grid, [(1, question)], 16)
    assert reply.message is not None
    grid.script = replying(letters(1000 + ALLOWANCE + 1))
    (reply,) = stream(grid, [(1, question)], 16)
    assert (reply.message, reply.failure, reply.refused) == (None, "too-large", True)
    assert reply.detail == "525289 bytes, expected at most 525288"


def test_a_reply_that_cannot_be_read_is_refused_and_others_are_taken(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = ScriptedGrid(clock, [], after({1: 0, 2: 0}))
    pull = grid.pull_messages

    def broken(message_ids: Iterable[str]) -> Any:
        if list(message_ids) == ["1"]:
            raise ValueError("no such type")
        return pull(message_ids)

    monkeypatch.setattr(grid, "pull_messages", broken)
    first, second = stream(grid, to_nodes(1, 2), 16)
    assert (first.to, first.failure, first.refused) == (1, "unreadable", True)
    assert "no such type" in first.detail
    assert (second.to, second.failure) == (2, None)


def test_what_answers_no_message_is_nobodys_reply(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower gives a server whatever a node has sent to it, with the first reply that is pulled."""
    grid = ScriptedGrid(clock, [], after({1: 5}))
    pull = grid.pull_messages
    stranger = message(1)
    monkeypatch.setattr(grid, "pull_messages", lambda asked: [stranger, *pull(asked)])
    (reply,) = stream(grid, to_nodes(1), 16)
    assert clock.passed >= 5
    assert reply.message is not None
    assert reply.message is not stranger
