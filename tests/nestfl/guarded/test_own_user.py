"""A guarded port answers only its own user."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn

from nestfl.guarded.own_user import (
    REFUSAL,
    OwnUserOnly,
    Receive,
    Scope,
    Send,
    guard_servers,
    is_own,
    own_port,
    owner,
)

pytestmark = pytest.mark.skipif(
    not Path("/proc/net/tcp").exists(), reason="only Linux tells whose a connection is"
)
SOMEBODY = 12345


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with all that was sent."""
    body = b""
    while True:
        part = await receive()
        body += part.get("body", b"")
        if not part.get("more_body"):
            break
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": body})


@contextmanager
def serving(app: object) -> Iterator[int]:
    config = uvicorn.Config(app, port=0, lifespan="off", log_level="error")  # type: ignore[arg-type]
    server = uvicorn.Server(config)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    with closing(listener):
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


def post(
    port: int, path: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> httpx.Response:
    with httpx.Client(trust_env=False) as client:
        return client.post(f"http://127.0.0.1:{port}{path}", content=body, headers=headers)


@pytest.fixture
def somebody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's user is another one than ours."""
    monkeypatch.setattr(os, "getuid", lambda: SOMEBODY)


def test_the_kernel_is_asked_whose_a_connection_is() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as client:
            ends = client.getsockname(), server.getsockname()
            assert owner(*ends) == os.getuid()
            assert owner(ends[0], ("127.0.0.1", 1)) is None
            assert owner(("127.0.0.2", ends[0][1]), ends[1]) is None
            assert owner(("::1", ends[0][1]), ends[1]) is None
        assert owner(*ends) is None, "of a connection that is closed nobody is the owner"


def test_a_half_closed_connection_is_nobodys() -> None:
    """Linux tells 0, root, for those that no process holds any more."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as client,
    ):
        client.shutdown(socket.SHUT_WR)
        assert owner(client.getsockname(), server.getsockname()) is None


def test_a_port_that_is_taken_is_its_users_before_a_server_answers() -> None:
    with own_port(0) as listener:
        port = listener.getsockname()[1]
        assert is_own(port)
        with pytest.raises(OSError, match="in use"):
            own_port(port)
    assert not is_own(port)


def test_its_own_user_is_answered() -> None:
    with serving(OwnUserOnly(echo)) as port:
        answer = post(port, "/v1/control/list-runs", b"hello")
    assert (answer.status_code, answer.content) == (200, b"hello")


@pytest.mark.usefixtures("somebody_else")
def test_others_are_refused_before_their_request_is_read() -> None:
    with serving(OwnUserOnly(echo)) as port:
        answer = post(port, "/v1/fleet/get-run", b"x" * 100)
    assert (answer.status_code, answer.content) == (403, REFUSAL)


@pytest.mark.usefixtures("somebody_else")
def test_a_proxy_of_another_user_reaches_the_fleet_api_alone() -> None:
    with serving(OwnUserOnly(echo, proxy_user=os.geteuid())) as port:
        paths = ("/v1/fleet/get-run", "/v1/control/list-runs", "/v1/runtime/acquire-task", "/docs")
        assert [post(port, path).status_code for path in paths] == [200, 403, 403, 403]


@pytest.mark.usefixtures("somebody_else")
@pytest.mark.parametrize("name", ["X-Forwarded-For", "Forwarded", "X-Real-IP"])
def test_a_header_does_not_say_whose_a_connection_is(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uvicorn.Config, "__init__", uvicorn.Config.__init__)  # put back after
    monkeypatch.setattr(uvicorn.Server, "run", uvicorn.Server.run)
    with own_port(0) as listener:
        guard_servers(listener)
        server = uvicorn.Server(uvicorn.Config(echo, port=1, lifespan="off", log_level="error"))
        thread = threading.Thread(target=server.run)
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as honest:  # before it has started
            thread.start()
            said = "{}:{}".format(*honest.getsockname())
            assert post(port, "/", headers={name: said}).status_code == 403
        server.should_exit = True
        thread.join()


def test_whose_connection_cannot_be_told_is_to_ask_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower takes a 403 for the end of its run, and tries again after a 503."""
    monkeypatch.setattr("nestfl.guarded.own_user.owner", lambda *_: None)
    with serving(OwnUserOnly(echo, proxy_user=None)) as port:
        assert post(port, "/v1/fleet/get-run").status_code == 503


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_another_user_of_this_machine_is_refused() -> None:
    request = b"POST /v1/control/list-runs HTTP/1.1\r\nHost: here\r\nContent-Length: 0\r\n\r\n"
    said = {}
    with serving(OwnUserOnly(echo)) as port:
        for user in (0, 65534):
            os.seteuid(user)
            try:
                link = socket.socket()  # is whoever's made it
            finally:
                os.seteuid(0)
            with link:
                link.connect(("127.0.0.1", port))
                link.sendall(request)
                said[user] = link.recv(100).split()[1]
    assert said == {0: b"200", 65534: b"403"}
