"""Replies that come object by object, or never, or as bombs: a stock SuperLink in this process.

The clock stands still unless the server sleeps; then nodes take the steps due by that time.
"""

from __future__ import annotations

import json
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore.corestate import in_memory_corestate

from nestfl.local_engine import LocalGrid
from protocol.records import footprint
from strategies.nodes import exchange as streaming
from strategies.nodes import pulling
from strategies.nodes.exchange import ALLOWANCE, Reply, stream
from tests.support.scripted import Clock
from tests.support.superlink import HandNode, SuperLink, superlink
from trials.security.as_node import Parcel, forged, repeated

NOT_ALL = "it announced a reply, but did not upload all of it"
MEGABYTES = 2**20


class Timeline(Clock):
    """A clock that stands still unless the server sleeps; things happen meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.coming: list[tuple[float, Callable[[], object]]] = []

    def at(self, when: float, act: Callable[[], object]) -> None:
        """Do something once so many seconds have passed."""
        self.coming.append((when, act))

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        due = [each for each in self.coming if each[0] <= self.passed]
        for each in due:
            self.coming.remove(each)
            each[1]()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Timeline:
    clock = Timeline()
    for module in (streaming, pulling):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(streaming, "SHORTEST_PAUSE", 0.5)  # fewer looks
    return clock


@pytest.fixture
def link() -> Iterator[SuperLink]:
    with superlink() as running:
        yield running


def zeros(size: int) -> RecordDict:
    return RecordDict({"arrays": ArrayRecord({"uint8": Array(np.zeros(size, np.uint8))})})


def noise(size: int, seed: int = 0) -> RecordDict:
    values = np.random.default_rng(seed).integers(0, 256, size, np.uint8)
    return RecordDict({"arrays": ArrayRecord({"uint8": Array(values)})})


def sent(*nodes: HandNode, size: int = 1000) -> Iterator[tuple[int, Message]]:
    """Yield a message to each of these nodes, with its place among them."""
    for place, node in enumerate(nodes):
        yield place, Message(zeros(size), dst_node_id=node.number, message_type="train")


def outcomes(replies: list[Reply[int]]) -> dict[int, str | None]:
    return {reply.to: reply.failure for reply in replies}


def test_a_node_that_announces_a_reply_and_uploads_nothing_is_late_at_the_deadline(
    link: SuperLink, clock: Timeline
) -> None:
    bad, early, late = link.node(), link.node(), link.node()
    clock.at(1, lambda: bad.announce(bad.reply(noise(1000))))
    clock.at(2, lambda: early.announce(early.reply(noise(1000, 1))).upload())
    clock.at(9.9, lambda: late.announce(late.reply(noise(1000, 2))).upload())
    replies = list(stream(link.grid, sent(bad, early, late), 16, deadline=10))
    assert outcomes(replies) == {0: "late", 1: None, 2: None}
    assert replies[-1].detail == NOT_ALL
    assert clock.passed == 10


def test_objects_that_come_one_by_one_do_not_put_off_the_deadline(
    link: SuperLink, clock: Timeline
) -> None:
    bad, slow = link.node(), link.node()

    def drip(node: HandNode, content: RecordDict, begin: float, pause: float) -> None:
        def begun() -> None:
            upload = node.announce(node.reply(content))
            for number in range(len(upload.missing)):
                clock.at(begin + number * pause, lambda: upload.upload(1))

        clock.at(begin, begun)

    drip(bad, noise(1000), 1, 6)
    drip(slow, noise(12 * MEGABYTES), 1, 1)
    messages = sent(bad, slow, size=12 * MEGABYTES)
    replies = {reply.to: reply for reply in stream(link.grid, messages, 16, deadline=10)}
    assert clock.passed == 10
    assert (replies[0].failure, replies[0].detail) == ("late", NOT_ALL)
    assert replies[1].message is not None
    whole = noise(12 * MEGABYTES).array_records["arrays"]["uint8"]
    assert replies[1].message.content.array_records["arrays"]["uint8"].data == whole.data


def test_nothing_is_left_of_unfinished_replies_over_rounds(
    link: SuperLink, clock: Timeline
) -> None:
    node = link.node()
    left: list[tuple[int, int, list[str]]] = []

    def begin(content: RecordDict) -> None:
        node.announce(node.reply(content)).upload(1)

    for number in range(4):
        content = noise(1000, number)
        clock.at(clock.passed + 1, partial(begin, content))
        assert [r.failure for r in stream(link.grid, sent(node), 16, deadline=5)] == ["late"]
        threads = [each.name for each in threading.enumerate() if "AnyIO" not in each.name]
        left.append((link.objects, link.state.num_message_res(), threads))
    assert left[0][:2] == (0, 0)
    assert left == left[:1] * 4


def test_what_is_uploaded_of_a_reply_that_was_late_is_not_kept(
    link: SuperLink, clock: Timeline
) -> None:
    node, uploads = link.node(), []
    clock.at(1, lambda: uploads.append(node.announce(node.reply(noise(1000)))))
    assert [r.failure for r in stream(link.grid, sent(node), 16, deadline=5)] == ["late"]
    uploads[0].upload()
    assert link.objects == 0


def test_an_upload_that_has_stopped_is_lost_where_there_is_no_deadline(
    link: SuperLink, clock: Timeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = link.node()

    def begin() -> None:
        monkeypatch.setattr(in_memory_corestate, "OBJECT_PUSH_SESSION_TTL_SECONDS", 0)
        node.announce(node.reply(noise(1000)))

    clock.at(1, begin)
    (reply,) = stream(link.grid, sent(node), 16)
    assert (reply.failure, reply.detail, reply.refused) == ("reply-lost", NOT_ALL, False)
    assert clock.passed < 2


def test_an_upload_takes_two_hours_at_most_where_there_is_no_deadline(
    link: SuperLink, clock: Timeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pulling.LONGEST_UPLOAD == 2 * 3600
    monkeypatch.setattr(pulling, "LONGEST_UPLOAD", 5)
    node = link.node()
    clock.at(1, lambda: node.announce(node.reply(noise(1000))))
    (reply,) = stream(link.grid, sent(node), 16)
    assert reply.failure == "reply-lost"
    assert 6 <= clock.passed < 8


def test_what_answers_no_message_is_deleted_and_not_waited_for(
    link: SuperLink, clock: Timeline
) -> None:
    bad, good = link.node(), link.node()
    stranger = Parcel.of(forged(link.grid.run.run_id, bad.number, 1))
    clock.at(1, lambda: bad.announce(stranger))
    clock.at(2, lambda: good.announce(good.reply(noise(1000))).upload())
    replies = list(stream(link.grid, sent(good), 16, deadline=10))
    assert outcomes(replies) == {0: None}
    assert link.objects == 0


def test_what_the_superlink_says_of_a_message_is_told(link: SuperLink, clock: Timeline) -> None:
    node = link.node()
    clock.at(1, lambda: link.state.deactivate_node(node.number))
    assert outcomes(list(stream(link.grid, sent(node), 16))) == {0: "node-gone"}


# --- replies that are larger than they look -------------------------------------------------------

SLICE = 32 * MEGABYTES
LARGEST = footprint(zeros(SLICE)) + ALLOWANCE

Bomb = Callable[[HandNode, pytest.MonkeyPatch], Parcel]


def chunk_named_100_times(node: HandNode, monkeypatch: pytest.MonkeyPatch) -> Parcel:
    return repeated(node.reply(noise(5 * MEGABYTES)), 100)


def array_under_1000_names(node: HandNode, monkeypatch: pytest.MonkeyPatch) -> Parcel:
    def change(kind: str, body: bytes) -> bytes:
        if kind != "ArrayRecord":
            return body
        (identity,) = json.loads(body).values()
        return json.dumps({str(number): identity for number in range(1000)}).encode()

    return node.reply(noise(5 * MEGABYTES)).changed(change)


def more_chunks_than_there_is_room_for(node: HandNode, _: pytest.MonkeyPatch) -> Parcel:
    return node.reply(noise(SLICE + 10 * MEGABYTES))


def one_large_chunk(node: HandNode, monkeypatch: pytest.MonkeyPatch) -> Parcel:
    monkeypatch.setattr("flwr.app.message.array.FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE", 2**30)
    return node.reply(noise(3 * SLICE // 2))


def many_small_numbers(node: HandNode, monkeypatch: pytest.MonkeyPatch) -> Parcel:
    """One byte each where they are sent, and eight and more where they are read."""
    return node.reply(RecordDict({"c": ConfigRecord({"k": [1] * 600_000})}))


@pytest.mark.parametrize(
    ("bomb", "detail"),
    [
        (chunk_named_100_times, "524300800 bytes, expected at most"),
        (array_under_1000_names, "bytes, expected at most"),
        (more_chunks_than_there_is_room_for, "more bytes than expected, at most"),
        (one_large_chunk, "more bytes than expected, at most"),
        (many_small_numbers, "more bytes than expected, at most"),
    ],
)
def test_a_reply_that_would_be_too_large_takes_twice_the_largest_one_at_most(
    bomb: Bomb, detail: str, link: SuperLink, clock: Timeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the SuperLink, which is in this process, too; it has the reply before it is measured."""
    bad, good = link.node(), link.node()

    def detonate() -> None:
        bad.announce(bomb(bad, monkeypatch)).upload()
        tracemalloc.start()

    clock.at(1, detonate)
    clock.at(3, lambda: good.announce(good.reply(noise(1000))).upload())
    try:
        first, second = stream(link.grid, sent(bad, good, size=SLICE), 16, deadline=900)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= 2 * LARGEST
    assert (first.to, first.failure, first.refused) == (0, "too-large", True)
    assert detail in first.detail
    assert (second.to, second.failure) == (1, None)
    assert link.objects == 0


def test_a_reply_of_many_objects_is_refused_before_any_is_fetched(
    link: SuperLink, clock: Timeline
) -> None:
    node = link.node()
    content = RecordDict()
    for number in range(300):
        content[str(number)] = ConfigRecord({"n": number})
    clock.at(1, lambda: node.announce(node.reply(content)))
    (reply,) = stream(link.grid, sent(node), 16, deadline=10)
    assert (reply.failure, reply.refused) == ("too-large", True)
    assert reply.detail.startswith("more than 264 objects, for")


@pytest.mark.parametrize("kind", ["Message", "RecordDict", "ArrayRecord", "Array"])
def test_an_object_that_names_others_than_it_has_is_not_put_together(
    kind: str, link: SuperLink, clock: Timeline
) -> None:
    node = link.node()

    def change(of: str, body: bytes) -> bytes:
        if of != kind:
            return body
        return b'{"arraychunk_ids": [0, 0, 7]}' if kind == "Array" else b"{}"

    clock.at(1, lambda: node.announce(node.reply(noise(1000)).changed(change)).upload())
    (reply,) = stream(link.grid, sent(node), 16, deadline=10)
    assert (reply.failure, reply.refused) == ("unreadable", True)


def test_a_reply_to_another_message_is_refused(link: SuperLink, clock: Timeline) -> None:
    """A message names its request in an object, which the SuperLink does not read."""
    node = link.node()

    def swapped() -> Parcel:
        honest = node.reply(noise(1000))
        other = Parcel.of(forged(link.grid.run.run_id, node.number, 1, "f" * 64))
        return Parcel(honest.message, other.objects)

    clock.at(1, lambda: node.announce(swapped()).upload())
    (reply,) = stream(link.grid, sent(node), 16, deadline=10)
    assert (reply.failure, reply.refused) == ("unreadable", True)


class ManyTimes(LocalGrid):
    """Nodes of the local engine that name one array many times: replies are there as a whole."""

    def answer(self, message: Message) -> Message | None:
        array = noise(5 * MEGABYTES).array_records["arrays"]["uint8"]
        record = ArrayRecord({str(number): array for number in range(300)})
        return Message(RecordDict({"arrays": record}), reply_to=message)


def test_a_grid_that_has_replies_whole_refuses_them_without_a_copy() -> None:
    grid = ManyTimes(nodes=1)
    (node,) = grid.get_node_ids()
    message = Message(zeros(SLICE), dst_node_id=node, message_type="train")
    tracemalloc.start()
    try:
        (reply,) = stream(grid, [(0, message)], 16)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (reply.failure, reply.refused) == ("too-large", True)
    assert peak <= 2 * LARGEST
