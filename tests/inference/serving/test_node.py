"""Nodes answer confident samples, forward the rest, and answer every request in the end."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine
from pathlib import Path
from typing import TypeVar

import httpx
import pytest
import torch
from torch import Tensor

from data.clients import global_test
from data.examples import ImageData
from inference import RunningEnsemble
from inference.serving.batching import Batcher
from inference.serving.node import Node, computing
from inference.serving.parent import (
    Address,
    ParentBusyError,
    ParentDownError,
    ParentRefusedError,
)
from inference.serving.refusal import BusyError, UnfitError
from inference.serving.samples import Computed, Samples
from inference.serving.settings import ServeError, ServeSettings, forwarder_of
from inference.serving.wire import DEGRADED, LIMITED, Answers
from server_app.splitting import Splitter
from tests.support.served import Parts, app_of, node_of

pytestmark = pytest.mark.usefixtures("one_thread")

Result = TypeVar("Result")


class Switch(httpx.AsyncBaseTransport):
    """A network that can be cut, or that answers something else, to a parent."""

    def __init__(self, node: Node) -> None:
        self.there = httpx.ASGITransport(app_of(node))
        self.cut = False
        self.says: httpx.Response | None = None
        self.hangs = False
        self.asked = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.asked += 1
        await asyncio.sleep(0)  # what is sent at once is on the way at once
        if self.cut:
            raise httpx.ConnectError("cut", request=request)
        if self.hangs:
            await asyncio.Event().wait()
        if self.says is not None:
            content = httpx.ByteStream(self.says.content)
            return httpx.Response(self.says.status_code, headers=self.says.headers, stream=content)
        return await self.there.handle_async_request(request)


class Clock:
    """Time that passes when a test says so."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def done(work: Coroutine[None, None, Result]) -> Result:
    return asyncio.run(work)


@pytest.fixture(scope="module")
def test_set(splitter: Splitter) -> ImageData:
    data = global_test(splitter.level.dataset)
    assert isinstance(data, ImageData)
    return data


@pytest.fixture(scope="module")
def images(test_set: ImageData) -> Tensor:
    return test_set.images[:40]


def samples(images: Tensor) -> Samples:
    return Samples(0, (images,))


@torch.no_grad()
def exits_of(splitter: Splitter, test_set: ImageData) -> tuple[Tensor, Tensor]:
    """Return the confidence and the classes of each exit of the whole network for 40 images."""
    ((x, _), *_) = test_set.batches(40)
    assert splitter.level.ensemble
    logits = torch.stack(RunningEnsemble(splitter.net)(x))
    confidence, classes = logits.softmax(-1).max(-1)
    return confidence, classes


def test_a_tree_answers_as_the_network_in_one_piece_at_the_exits_that_thresholds_say(
    parts: Parts, splitter: Splitter, test_set: ImageData, images: Tensor
) -> None:
    cloud = node_of(parts, "cloud")
    edge = node_of(parts, "edge", {"cloud": app_of(cloud)})
    device = node_of(parts, "device", {"edge": app_of(edge)})
    answers = done(device.answer_samples(samples(images)))
    confidence, classes = exits_of(splitter, test_set)
    sure = [confidence[0] >= parts["device"][0].threshold]
    sure.append(confidence[1] >= parts["edge"][0].threshold)
    expected = torch.where(sure[0], 0, torch.where(sure[1], 1, 3))
    assert (answers.exits - 1).tolist() == expected.tolist()
    assert len(set(answers.nodes)) == 3
    names = {0: "device", 1: "edge", 3: "cloud"}
    assert answers.nodes == tuple(names[place] for place in expected.tolist())
    assert answers.classes.tolist() == classes.gather(0, expected[None])[0].tolist()
    assert torch.allclose(answers.confidence, confidence.gather(0, expected[None])[0], atol=1e-5)
    assert not answers.flags.any()
    assert edge.metrics.samples == device.metrics.forwarded == int((~sure[0]).sum())
    assert cloud.metrics.samples == int((~sure[0] & ~sure[1]).sum())


def test_requests_that_come_at_once_are_answered_as_one_by_one(
    parts: Parts, images: Tensor
) -> None:
    def tree() -> Node:
        edge = node_of(parts, "edge", {"cloud": app_of(node_of(parts, "cloud"))})
        return node_of(parts, "device", {"edge": app_of(edge)}, most=16)

    async def at_once() -> list[Answers]:
        node = tree()
        return await asyncio.gather(*(node.answer_samples(samples(i[None])) for i in images))

    together = done(at_once())
    whole = done(tree().answer_samples(samples(images)))
    assert [int(each.classes) for each in together] == whole.classes.tolist()
    assert tuple(each.nodes[0] for each in together) == whole.nodes


def test_what_a_node_is_unsure_of_in_one_batch_goes_on_in_one_message(
    parts: Parts, images: Tensor
) -> None:
    async def messages() -> int:
        network = Switch(node_of(parts, "edge", threshold=0.0))
        device = node_of(parts, "device", {"edge": network}, threshold=2.0)
        await asyncio.gather(*(device.answer_samples(samples(i[None])) for i in images[:10]))
        assert device.metrics.forwarded == 10
        return network.asked

    # The first goes alone, for nothing is computed yet; the others wait for it.
    assert done(messages()) <= 2


def test_while_a_parent_is_down_a_node_answers_by_itself_says_so_and_recovers(
    parts: Parts, images: Tensor
) -> None:
    clock, network = Clock(), Switch(node_of(parts, "edge", threshold=0.0))
    device = node_of(parts, "device", {"edge": network}, clock=clock, threshold=2.0)

    async def asked() -> Answers:
        return await device.answer_samples(samples(images[:4]))

    async def story() -> None:
        assert set((await asked()).nodes) == {"edge"}
        network.cut = True
        alone = await asked()
        assert set(alone.nodes) == {"device"}
        assert alone.flags.tolist() == [DEGRADED] * 4
        assert network.asked == 2
        await asked()
        assert network.asked == 2  # it is left alone for 0.1 seconds
        clock.now += 0.11
        await asked()
        assert network.asked == 3
        clock.now += 0.11
        await asked()
        assert network.asked == 3  # and now for 0.2
        network.cut = False
        clock.now += 0.1
        back = await asked()
        assert set(back.nodes) == {"edge"}
        assert not back.flags.any()

    done(story())
    assert device.metrics.degraded == 16
    assert device.metrics.forwarded == 8


@pytest.mark.parametrize(
    "says",
    [
        httpx.Response(500, text="no"),
        httpx.Response(200, content=b"no answers"),
        httpx.Response(401, text="no token"),
        httpx.Response(200, content=bytes(100_000)),
    ],
)
def test_a_parent_that_answers_nonsense_is_as_one_that_is_down(
    parts: Parts, images: Tensor, says: httpx.Response
) -> None:
    network = Switch(node_of(parts, "edge"))
    network.says = says
    device = node_of(parts, "device", {"edge": network}, threshold=2.0)
    answers = done(device.answer_samples(samples(images[:3])))
    assert answers.flags.tolist() == [DEGRADED] * 3


def test_a_parent_that_is_well_is_not_down_for_a_grandparent_that_hangs(
    parts: Parts, images: Tensor
) -> None:
    above = Switch(node_of(parts, "cloud"))
    above.hangs = True
    edge = node_of(parts, "edge", {"cloud": above}, threshold=2.0, patience=60.0)
    device = node_of(parts, "device", {"edge": app_of(edge)}, threshold=2.0, patience=8.0)
    answers = done(device.answer_samples(samples(images[:3])))
    assert answers.nodes == ("edge",) * 3
    assert answers.flags.tolist() == [DEGRADED] * 3
    assert device.forwarder.parents[0].up


def test_a_parent_that_hangs_is_down_and_the_node_answers_by_itself(
    parts: Parts, images: Tensor
) -> None:
    network = Switch(node_of(parts, "edge"))
    network.hangs = True
    device = node_of(parts, "device", {"edge": network}, threshold=2.0, patience=0.05)
    answers = done(device.answer_samples(samples(images[:3])))
    assert answers.flags.tolist() == [DEGRADED] * 3
    assert not device.forwarder.parents[0].up


def test_a_message_that_is_too_large_for_a_parent_goes_in_parts(
    parts: Parts, images: Tensor
) -> None:
    network = Switch(node_of(parts, "edge", threshold=0.0, most=4))
    device = node_of(parts, "device", {"edge": network}, threshold=2.0)
    whole = node_of(parts, "device", {"edge": app_of(node_of(parts, "edge", threshold=0.0))})

    async def story() -> None:
        answers = await device.answer_samples(samples(images[:16]))
        assert set(answers.nodes) == {"edge"}
        assert network.asked == 1 + 2 + 4  # of 16, of 8, and of 4 samples, which are answered
        expected = await whole.answer_samples(samples(images[:16]))
        rows = [row for row, node in enumerate(expected.nodes) if node == "edge"]
        assert answers.classes[rows].tolist() == expected.classes[rows].tolist()

    done(story())


def test_what_a_parent_refuses_fails_alone(parts: Parts, images: Tensor) -> None:
    edge = node_of(parts, "edge", threshold=0.0)
    device = node_of(parts, "device", {"edge": app_of(edge)})
    start = parts["device"][0].last
    good = computing(*parts["device"])(samples(images[:1])).onward
    bad = Samples(start, tuple(each * math.nan for each in good.features))

    async def story() -> None:
        send = device.forwarder.send
        asked = (send(each) for each in (good, good, bad, good))
        found = await asyncio.gather(*asked, return_exceptions=True)
        kinds = [type(each) for each in found]
        assert kinds == [Answers, Answers, ParentRefusedError, Answers]

    done(story())
    assert device.forwarder.parents[0].up


def test_what_was_on_the_way_when_a_parent_went_down_is_one_failure(
    parts: Parts, images: Tensor
) -> None:
    clock, network = Clock(), Switch(node_of(parts, "edge", threshold=0.0))
    device = node_of(parts, "device", {"edge": network}, clock=clock, threshold=2.0)
    network.cut = True
    onward = computing(*parts["device"])(samples(images[:1])).onward
    (parent,) = device.forwarder.parents

    async def story() -> None:
        asked = (parent.ask(onward) for _ in range(8))
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert {type(each) for each in found} == {ParentDownError}
        assert not parent.open
        clock.now += 0.11
        assert parent.open
        network.says, network.cut = httpx.Response(429), False
        with pytest.raises(ParentBusyError):
            await parent.ask(onward)
        assert parent.up  # it is there, if busy

    done(story())


def test_features_so_large_that_scores_are_no_numbers_are_refused(parts: Parts) -> None:
    huge = (torch.zeros(1, 10), torch.full((1, 32, 4, 4), 3e38))
    edge = node_of(parts, "edge")
    with pytest.raises(UnfitError, match="too large"):
        done(edge.answer_samples(Samples(4, huge)))


@pytest.mark.parametrize("url", ["https://edge:port", "https://", "http://edge:8443", "edge"])
def test_a_parents_address_is_checked_at_the_start(parts: Parts, url: str) -> None:
    settings = ServeSettings(
        "127.0.0.1", 8443, Path("c"), Path("k"), "t", parents={"edge": Address(url, "t")}
    )
    with pytest.raises(ServeError, match="expected https://HOST:PORT"):
        forwarder_of(parts["device"][0], settings)


def test_a_parent_that_takes_no_more_limits_its_child_for_as_long_as_it_says(
    parts: Parts, images: Tensor
) -> None:
    clock, network = Clock(), Switch(node_of(parts, "edge", threshold=0.0))
    network.says = httpx.Response(429, headers={"Retry-After": "2"})
    device = node_of(parts, "device", {"edge": network}, clock=clock, threshold=2.0)

    async def flags() -> list[int]:
        return (await device.answer_samples(samples(images[:2]))).flags.tolist()

    async def story() -> None:
        assert await flags() == [LIMITED] * 2
        network.says = None
        clock.now += 1.9
        assert await flags() == [LIMITED] * 2
        assert network.asked == 1
        clock.now += 0.2
        assert await flags() == [0, 0]

    done(story())
    assert device.metrics.limited == 4


def test_no_more_than_the_transfer_limit_is_passed_on_and_the_least_sure_go(
    parts: Parts, images: Tensor
) -> None:
    clock = Clock()
    edge = node_of(parts, "edge", threshold=0.0)
    device = node_of(parts, "device", {"edge": app_of(edge)}, rate=5, clock=clock, threshold=2.0)

    async def story() -> tuple[Answers, Answers, Answers]:
        first = await device.answer_samples(samples(images))
        second = await device.answer_samples(samples(images))
        clock.now += 0.4  # two more
        return first, second, await device.answer_samples(samples(images))

    first, second, third = done(story())
    assert [each.nodes.count("edge") for each in (first, second, third)] == [5, 0, 2]
    held_back = [number for number, flag in enumerate(first.flags.tolist()) if flag == LIMITED]
    assert len(held_back) == 35
    alone = node_of(parts, "device")
    sure = done(alone.answer_samples(samples(images))).confidence
    gone = [number for number in range(40) if number not in held_back]
    assert float(sure[gone].max()) <= float(sure[held_back].min())


def test_two_parents_share_what_comes_and_one_takes_all_while_the_other_is_down(
    parts: Parts, images: Tensor
) -> None:
    first, second = (Switch(node_of(parts, "edge", threshold=0.0)) for _ in range(2))
    device = node_of(
        parts,
        "device",
        {"one": first, "two": second},
        threshold=2.0,
        parents={"one": 0.75, "two": 0.25},
    )

    async def story() -> list[int]:
        for _ in range(8):
            await device.answer_samples(samples(images[:1]))
        counts = [first.asked, second.asked]
        first.cut = True
        answers = await device.answer_samples(samples(images[:1]))
        assert not answers.flags.any()
        return counts

    assert done(story()) == [6, 2]


def test_a_node_that_has_too_much_waiting_refuses_more(parts: Parts, images: Tensor) -> None:
    async def story() -> list[Answers | BaseException]:
        node = node_of(parts, "device", batching={"most_waiting": 20})
        asked = (node.answer_samples(samples(images[:10])) for _ in range(5))
        return await asyncio.gather(*asked, return_exceptions=True)

    results = done(story())
    assert [type(result) for result in results] == [Answers] * 2 + [BusyError] * 3


def test_nothing_is_computed_for_those_who_have_gone(parts: Parts, images: Tensor) -> None:
    compute, computed = computing(*parts["device"]), list[int]()

    def counted(given: Samples) -> Computed:
        computed.append(len(given))
        return compute(given)

    async def story() -> None:
        batcher = Batcher(counted)
        gone = asyncio.create_task(batcher(samples(images[:3])))
        await asyncio.sleep(0)
        gone.cancel()
        stays = await batcher(samples(images[:2]))
        assert len(stays.classes) == 2
        assert batcher.waiting == 0
        await batcher.close()

    done(story())
    assert computed == [2]


def test_features_of_16_bits_cost_half_and_change_answers_little(
    parts: Parts, images: Tensor
) -> None:
    def answered(half: bool) -> tuple[Answers, int]:
        edge = node_of(parts, "edge", threshold=0.0)
        device = node_of(parts, "device", {"edge": app_of(edge)}, half=half, threshold=2.0)
        return done(device.answer_samples(samples(images))), device.forwarder.sent_bytes

    (exact, whole), (near, halved) = answered(False), answered(True)
    assert halved < 0.51 * whole
    assert torch.allclose(exact.confidence, near.confidence, atol=0.01)


def test_a_parents_answers_name_who_gave_them(parts: Parts, images: Tensor) -> None:
    body = done(node_of(parts, "device").answer_samples(samples(images[:3]))).pack()
    assert Answers.unpack(body, 3).nodes == ("device",) * 3
