"""Replies that come object by object, or never, or as bombs: a stock SuperLink in this process.

The clock stands still unless the server sleeps; then nodes do what they are to do by that time.
"""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.supercore.corestate import in_memory_corestate

from benchmarks.security.as_node import Parcel, forged, repeated
from nestfl.local_engine import LocalGrid
from protocol.records import footprint
from strategies.fleet import pulling, streaming
from strategies.fleet.pulling import LONGEST_UPLOAD
from strategies.fleet.streaming import ALLOWANCE, Reply, stream
from tests.support.scripted import Clock
from tests.support.superlink import HandNode, SuperLink, superlink

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
    clock.at(59.8, lambda: late.announce(late.reply(noise(1000, 2))).upload())
    replies = list(stream(link.grid, sent(bad, early, late), 16, deadline=60))
    assert outcomes(replies) == {0: "late", 1: None, 2: None}
    assert replies[-1].detail == NOT_ALL
    assert clock.passed == 60


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

    drip(bad, noise(1000), 1, 50)
    drip(slow, noise(12 * MEGABYTES), 1, 8)
    messages = sent(bad, slow, size=12 * MEGABYTES)
    replies = {reply.to: reply for reply in stream(link.grid, messages, 16, deadline=60)}
    assert clock.passed == 60
    assert (replies[0].failure, replies[0].detail) == ("late", NOT_ALL)
    assert replies[1].message is not None
    whole = noise(12 * MEGABYTES).array_records["arrays"]["uint8"]
    assert replies[1].message.content.array_records["arrays"]["uint8"].data == whole.data


def test_nothing_is_left_of_unfinished_replies_over_rounds(
    link: SuperLink, clock: Timeline
) -> None:
    node = link.node()
    left: list[tuple[int, int, int]] = []
    for number in range(4):
        clock.at(clock.passed + 1, lambda: node.announce(node.reply(noise(1000, number))).upload(1))
        assert [r.failure for r in stream(link.grid, sent(node), 16, deadline=5)] == ["late"]
        left.append((link.objects, link.state.num_message_res(), threading.active_count()))
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
    monkeypatch.setattr(in_memory_corestate, "OBJECT_PUSH_SESSION_TTL_SECONDS", 0)
    clock.at(1, lambda: node.announce(node.reply(noise(1000))))
    (reply,) = stream(link.grid, sent(node), 16)
    assert (reply.failure, reply.detail, reply.refused) == ("reply-lost", NOT_ALL, False)
    assert clock.passed < 2


def test_an_upload_takes_two_hours_at_most_where_there_is_no_deadline(
    link: SuperLink, clock: Timeline
) -> None:
    node = link.node()
    clock.at(1, lambda: node.announce(node.reply(noise(1000))))
    (reply,) = stream(link.grid, sent(node), 16)
    assert reply.failure == "reply-lost"
    assert LONGEST_UPLOAD < clock.passed < LONGEST_UPLOAD + 3


def test_what_answers_no_message_is_deleted_and_not_waited_for(
    link: SuperLink, clock: Timeline
) -> None:
    bad, good = link.node(), link.node()
    stranger = Parcel.of(forged(link.grid.run.run_id, bad.number, 1))
    clock.at(1, lambda: bad.announce(stranger))
    clock.at(2, lambda: good.announce(good.reply(noise(1000))).upload())
    replies = list(stream(link.grid, sent(good), 16, deadline=60))
    assert outcomes(replies) == {0: None}
    assert link.objects == 0


def test_what_the_superlink_says_of_a_message_is_told(link: SuperLink, clock: Timeline) -> None:
    node = link.node()
    clock.at(1, lambda: link.state.deactivate_node(node.number))
    assert outcomes(list(stream(link.grid, sent(node), 16))) == {0: "node-gone"}


# --- replies that are larger than they look -------------------------------------------------------


SLICE = 32 * MEGABYTES
LARGEST = footprint(zeros(SLICE)) + ALLOWANCE


def tiny_ints(parcel: Parcel) -> Parcel:
    """Name an array once more than may be, under as many names as there is room for."""
    return parcel.changed(
        lambda kind, body: body if kind != "ArrayRecord" else many_names(body, 1000)
    )


def many_names(body: bytes, count: int) -> bytes:
    import json

    (identity,) = json.loads(body).values()
    return json.dumps({str(number): identity for number in range(count)}).encode()


def of_one_chunk(content: RecordDict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flwr.app.message.array.FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE", 2**30)
    _ = content.object_id
