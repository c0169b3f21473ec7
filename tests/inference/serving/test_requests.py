"""A node answers any bytes with a status, and then still answers a valid request."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping

import httpx
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save
from torch import Tensor

from inference.serving import app as application
from inference.serving.node_part import Form
from inference.serving.refusal import MalformedError, UnfitError
from inference.serving.wire import Answers, pack, read_samples
from tests.support.served import BEARER, Parts, app_of, client_of, node_of

pytestmark = pytest.mark.usefixtures("one_thread")

GOOD = pack((torch.zeros(2, 1, 8, 8, dtype=torch.uint8),))


def post(
    parts: Parts,
    body: bytes | AsyncIterator[bytes],
    path: str = "/v1/predict",
    headers: Mapping[str, str] = BEARER,
    name: str = "device",
) -> httpx.Response:
    """Return a node's answer to a request; afterwards it must answer a valid one."""

    async def asked() -> httpx.Response:
        node = node_of(parts, name)
        async with client_of(app_of(node)) as client:
            response = await client.post(path, content=body, headers=headers)
            if response.status_code != 200 and name == "device":
                good = await client.post("/v1/predict", content=GOOD, headers=BEARER)
                assert good.status_code == 200
                assert len(Answers.unpack(good.content, 2).nodes) == 2
            assert sum(node.metrics.refused.values()) == int(400 <= response.status_code < 500)
            return response

    return asyncio.run(asked())


def error_of(response: httpx.Response) -> str:
    error: str = response.json()["error"]
    assert "\n" not in error
    assert len(error) < 400
    return error


@pytest.mark.parametrize(
    "headers",
    [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic eDp5"}, {"Authorization": ""}],
)
@pytest.mark.parametrize("path", ["/v1/predict", "/v1/continue/4"])
def test_who_has_no_token_is_not_answered(
    parts: Parts, headers: Mapping[str, str], path: str
) -> None:
    response = post(parts, GOOD, path, headers)
    assert response.status_code == 401
    assert response.headers["WWW-Authenticate"] == "Bearer"
    assert "Authorization: Bearer TOKEN" in error_of(response)


def test_metrics_need_the_token_and_health_does_not(parts: Parts) -> None:
    async def asked() -> None:
        async with client_of(app_of(node_of(parts, "device"))) as client:
            assert (await client.get("/metrics")).status_code == 401
            assert (await client.get("/health")).json()["name"] == "device"
            await client.post("/v1/predict", content=GOOD, headers=BEARER)
            lines = (await client.get("/metrics", headers=BEARER)).text.splitlines()
            assert 'nestfl_requests_total{kind="predict"} 1' in lines
            assert 'nestfl_answers_total{node="device",exit="1"} 2' in lines
            assert 'nestfl_refused_total{reason="unauthorized"} 1' in lines
            assert any(line.startswith('nestfl_latency_seconds{quantile="0.99"}') for line in lines)

    asyncio.run(asked())


def test_a_body_that_is_said_to_be_too_large_is_refused(parts: Parts) -> None:
    response = post(parts, b"x" * 200_000)
    assert response.status_code == 413
    assert "expected up to 69632" in error_of(response)  # 64 samples of 64 bytes, and 64 KiB


async def streamed(parts: Parts, chunks: AsyncIterator[bytes]) -> int:
    """The status of a request whose body comes in pieces, as a server passes it on."""
    status: list[int] = []

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": await anext(chunks), "more_body": True}

    async def send(message: Mapping[str, object]) -> None:
        if "status" in message:
            status.append(int(str(message["status"])))

    scope = {
        **{"type": "http", "method": "POST", "path": "/v1/predict", "query_string": b""},
        **{"http_version": "1.1", "scheme": "https", "server": ("node", 443)},
        **{"raw_path": b"/v1/predict", "root_path": "", "client": ("x", 1)},
        "headers": [(name.lower().encode(), text.encode()) for name, text in BEARER.items()],
    }
    await app_of(node_of(parts, "device"))(scope, receive, send)
    return status[0]


def test_a_body_that_turns_out_too_large_is_read_no_further(parts: Parts) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 10_000
            yield bytes(10_000)

    assert asyncio.run(streamed(parts, endless())) == 413
    assert sent == 70_000


def test_a_body_that_does_not_come_is_not_waited_for(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "PATIENCE", 0.05)

    async def slow() -> AsyncIterator[bytes]:
        yield GOOD[:10]
        await asyncio.Event().wait()

    assert asyncio.run(streamed(parts, slow())) == 408


def test_more_bytes_at_once_than_a_node_holds_are_refused(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "MOST_BODIES", 0)

    async def asked() -> None:
        node = node_of(parts, "device")
        async with client_of(app_of(node)) as client:
            for _ in range(2):
                response = await client.post("/v1/predict", content=GOOD, headers=BEARER)
                assert response.status_code == 429
                assert response.headers["Retry-After"] == "1"

    asyncio.run(asked())


def test_bytes_that_have_been_read_are_held_no_longer(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "MOST_BODIES", 1)

    async def asked() -> None:
        async with client_of(app_of(node_of(parts, "device"))) as client:
            large = pack((torch.zeros(64, 1, 8, 8, dtype=torch.uint8),))
            for _ in range(20):  # of 4 KiB, where 68 are held
                response = await client.post("/v1/predict", content=large, headers=BEARER)
                assert response.status_code == 200

    asyncio.run(asked())


def test_an_empty_body_is_no_request(parts: Parts) -> None:
    response = post(parts, b"")
    assert (response.status_code, error_of(response)) == (
        400,
        "an empty body: expected tensors as safetensors",
    )


def header(content: object, values: bytes = b"") -> bytes:
    text = json.dumps(content).encode()
    return len(text).to_bytes(8, "little") + text + values


@pytest.mark.parametrize(
    "body",
    [
        b"hello",
        GOOD[:-1],
        GOOD + b"x",
        b"\xff" * 100,
        header([]),
        header({"0": {"dtype": "U8", "shape": [1, 1, 8, 8], "data_offsets": [0, 2**63]}}),
        header({"0": {"dtype": "U8", "shape": [2**62, 2**62], "data_offsets": [0, 1]}}, b"x"),
        header({"0": {"dtype": "F8_E4M3", "shape": [1], "data_offsets": [0, 1]}}, b"x"),
        header({"0": {"dtype": "NONE", "shape": [1], "data_offsets": [0, 1]}}, b"x"),
    ],
)
def test_a_malformed_body_is_refused_in_a_sentence(parts: Parts, body: bytes) -> None:
    response = post(parts, body)
    assert response.status_code in (400, 422)
    error_of(response)


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({"x": torch.zeros(1)}, "the body has the tensors x: expected 0"),
        ({}, "the body has the tensors none: expected 0"),
        ({"0": torch.zeros(2, 1, 8, 8)}, "tensor 0 is float32 [2, 1, 8, 8]: expected uint8"),
        ({"0": torch.zeros(2, 3, 8, 8, dtype=torch.uint8)}, "expected uint8 [samples, 1, 8, 8]"),
        ({"0": torch.zeros(0, 1, 8, 8, dtype=torch.uint8)}, "0 samples: expected 1 to 64"),
        ({"0": torch.zeros(65, 1, 8, 8, dtype=torch.uint8)}, "65 samples: expected 1 to 64"),
        ({"0": torch.zeros((), dtype=torch.uint8)}, "0 samples: expected 1 to 64"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_with_what_was_expected(
    parts: Parts, tensors: dict[str, Tensor], says: str
) -> None:
    response = post(parts, save(tensors))
    assert response.status_code == 422
    assert says in error_of(response)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_features_that_are_not_finite_are_refused(parts: Parts, value: float) -> None:
    features = (torch.zeros(1, 10), torch.full((1, 32, 4, 4), value))
    response = post(parts, pack(features), "/v1/continue/4", name="edge")
    assert (response.status_code, error_of(response)) == (422, "some values are not finite")


@pytest.mark.parametrize(
    ("name", "path", "says"),
    [
        ("edge", "/v1/predict", "edge takes no inputs: it goes on from unit 4"),
        ("device", "/v1/continue/4", "device takes no features behind unit 4"),
        ("device", "/v1/continue/99999", "device takes no features behind unit 99999"),
        ("device", "/v1/continue/x", "unit 'x': expected the number of a unit, 1 to 99999"),
        ("device", "/v1/continue/" + "9" * 20, f"unit '{'9' * 20}': expected the number of a unit"),
        ("device", "/v1/continue/" + "9" * 5000, f"unit '{'9' * 40}': expected the number of"),
        ("device", "/v1/continue/-1", "unit '-1': expected the number of a unit, 1 to 99999"),
        ("device", "/v1/continue/0", "unit '0': expected the number of a unit, 1 to 99999"),
    ],
)
def test_a_question_for_another_node_is_refused_with_what_this_one_takes(
    parts: Parts, name: str, path: str, says: str
) -> None:
    response = post(parts, GOOD, path, name=name)
    assert response.status_code == 404
    assert says in error_of(response)


@pytest.mark.parametrize("path", ["/v1/predict/", "/v1/continue/4/", "/metrics/", "/health/"])
def test_a_caller_is_not_sent_to_a_host_that_the_request_names(parts: Parts, path: str) -> None:
    async def asked() -> httpx.Response:
        async with client_of(app_of(node_of(parts, "device"))) as client:
            method = "POST" if path.startswith("/v1") else "GET"
            headers = {**BEARER, "Host": "elsewhere.example"}
            return await client.request(method, path, content=GOOD, headers=headers)

    response = asyncio.run(asked())
    assert response.status_code == 404
    assert "location" not in response.headers


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.binary(max_size=300))
@example(body=GOOD)
def test_any_bytes_are_samples_or_are_refused(body: bytes) -> None:
    try:
        (found,) = read_samples(body, (Form("uint8", (1, 8, 8)),), 128, 64)
    except (MalformedError, UnfitError):
        return
    assert found.shape[1:] == (1, 8, 8)


@settings(max_examples=100)
@given(data=st.data())
def test_a_good_body_with_some_bytes_changed_is_samples_or_is_refused(data: st.DataObject) -> None:
    body = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 5))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        (found,) = read_samples(bytes(body), (Form("uint8", (1, 8, 8)),), 128, 64)
    except (MalformedError, UnfitError):
        return
    assert found.dtype == torch.uint8


def test_texts_of_a_request_have_one_length_which_is_not_too_long() -> None:
    forms = (Form("bool", (1, 1, None)), Form("float32", (None, 4)))

    def read(mask: int, tokens: int) -> int:
        features = torch.ones(2, 1, 1, mask, dtype=torch.bool), torch.ones(2, tokens, 4)
        return len(read_samples(pack(features), forms, 7, 64))

    assert read(7, 7) == read(1, 1) == 2
    for mask, tokens in ((7, 6), (8, 8), (0, 0)):
        with pytest.raises(UnfitError, match="expected one length, of 1 to 7"):
            read(mask, tokens)


@pytest.mark.parametrize("token", [-1, 100, 10**6])
def test_tokens_that_the_network_does_not_know_are_refused(token: int) -> None:
    forms = (Form("int32", (None,), vocabulary=100),)
    known = torch.tensor([[0, 99]], dtype=torch.int32)
    assert torch.equal(read_samples(pack((known,)), forms, 7, 64)[0], known)
    with pytest.raises(UnfitError, match="expected 0 to 99"):
        read_samples(pack((torch.tensor([[1, token]], dtype=torch.int32),)), forms, 7, 64)


def test_values_too_large_for_16_bits_are_sent_with_32() -> None:
    forms = (Form("float32", (2,)),)
    sent = torch.tensor([[1e6, 1.0]])
    assert read_samples(pack((sent,), half=True), forms, 1, 1)[0].tolist() == [[1e6, 1.0]]


def packed(**changed: Tensor) -> bytes:
    good = Answers(
        torch.zeros(2, dtype=torch.int32),
        torch.full((2,), 0.5),
        torch.ones(2, dtype=torch.uint8),
        torch.zeros(2, dtype=torch.uint8),
        ("a", "b"),
    )
    return save({**load(good.pack()), **changed})


@pytest.mark.parametrize(
    "changed",
    [
        {"names": torch.tensor(10**12)},
        {"names": torch.zeros(2, 2, dtype=torch.uint8)},
        {"names": torch.full((2000,), 97, dtype=torch.uint8)},
        {"names": torch.tensor(list(b"a\nb\nc"), dtype=torch.uint8)},
        {"names": torch.tensor([255], dtype=torch.uint8)},
        {"node": torch.tensor([0, -1], dtype=torch.int32)},
        {"node": torch.tensor([0, 2], dtype=torch.int32)},
        {"class": torch.tensor([0, -1], dtype=torch.int32)},
        {"class": torch.tensor([0, 10], dtype=torch.int32)},
        {"exit": torch.tensor([0, 1], dtype=torch.uint8)},
        {"flags": torch.tensor([0, 4], dtype=torch.uint8)},
        {"confidence": torch.tensor([0.5, float("nan")])},
    ],
)
def test_answers_that_cannot_be_are_none(changed: dict[str, Tensor]) -> None:
    assert Answers.unpack(packed(), 2, classes=10).nodes == ("a", "b")
    with pytest.raises(MalformedError):
        Answers.unpack(packed(**changed), 2, classes=10)


@pytest.mark.parametrize("left", ["soon", "nan", "-1", "0"])
def test_a_time_that_is_none_is_refused(parts: Parts, left: str) -> None:
    response = post(parts, GOOD, headers={**BEARER, "X-Time-Left": left})
    assert response.status_code == 400
    assert "expected seconds" in error_of(response)


@given(
    count=st.integers(1, 20),
    names=st.lists(st.text("abc-é", min_size=1), min_size=1, max_size=3),
)
def test_answers_come_through_as_they_were_given(count: int, names: list[str]) -> None:
    given_answers = Answers(
        torch.arange(count, dtype=torch.int32),
        torch.rand(count),
        torch.full((count,), 3, dtype=torch.uint8),
        torch.ones(count, dtype=torch.uint8),
        tuple(names[row % len(names)] for row in range(count)),
    )
    read = Answers.unpack(given_answers.pack(), count)
    assert read.nodes == given_answers.nodes
    for name in ("classes", "confidence", "exits", "flags"):
        assert torch.equal(getattr(read, name), getattr(given_answers, name))
