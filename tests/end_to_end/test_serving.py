"""Nodes as processes, asked over TLS: under load, killed, stopped, and fed what is no request."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from data import global_test
from data.images import ImageData
from inference.serving.client import ServiceClient
from inference.serving.wire import DEGRADED, Answers
from nestfl.serving_tree import Tree
from server_app.predictor import TO_THE_END
from server_app.splitting import Splitter, chain
from tests.support.served import small_run

pytestmark = pytest.mark.processes

LONGEST = 120.0
"""Seconds that a change may take to show on a busy machine."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def splitter(run: Path) -> Splitter:
    return Splitter(run)


@pytest.fixture(scope="module")
def data(splitter: Splitter) -> ImageData:
    found = global_test(splitter.level.dataset)
    assert isinstance(found, ImageData)
    return found


@pytest.fixture(scope="module")
def tree(splitter: Splitter, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    folder = tmp_path_factory.mktemp("split") / "parts"
    topology = chain((1, 2, 4), (0.5, 0.5))
    splitter.split(topology, splitter.thresholds(topology), folder)
    tree = Tree(folder, port=free_port(3))
    try:
        tree.start_all()
        yield tree
    finally:
        tree.stop()


def free_port(count: int) -> int:
    """The first of so many ports in a row that nobody has."""
    for port in range(20_000 + os.getpid() % 10_000, 60_000, count):
        sockets = [socket.socket() for _ in range(count)]
        try:
            for number, each in enumerate(sockets):
                each.bind(("127.0.0.1", port + number))
        except OSError:
            continue
        else:
            return port
        finally:
            for each in sockets:
                each.close()
    raise AssertionError("no free ports")


def client_of(tree: Tree, name: str = "device", token: str | None = None) -> ServiceClient:
    return ServiceClient(tree.url(name), token or tree.token, tree.authority, timeout=LONGEST)


def until_nobody_degrades(client: ServiceClient, data: ImageData, degraded: bool) -> Answers:
    """Ask until some answers are degraded, or none."""
    end = time.monotonic() + LONGEST
    while time.monotonic() < end:
        answers = client.predict(data.images[:50])
        if bool((answers.flags & DEGRADED).any()) == degraded:
            return answers
        time.sleep(0.1)
    raise AssertionError(f"answers did not become {'degraded' if degraded else 'whole'}")


class Askers:
    """Threads that ask without a pause, and keep what went wrong."""

    def __init__(self, tree: Tree, data: ImageData, count: int = 2, name: str = "device") -> None:
        self.tree, self.data, self.name = tree, data, name
        self.answered, self.errors, self.stopped = 0, list[str](), threading.Event()
        self.threads = [threading.Thread(target=self.ask, args=(n,)) for n in range(count)]

    def ask(self, number: int) -> None:
        chance = torch.Generator().manual_seed(number)
        with client_of(self.tree, self.name) as client:
            while not self.stopped.is_set():
                size = int(torch.randint(1, 17, (), generator=chance))
                rows = torch.randint(len(self.data), (size,), generator=chance)
                try:
                    answers = client.predict(self.data.images[rows])
                except Exception as error:
                    self.errors.append(repr(error))
                else:
                    self.answered += len(answers.nodes)

    def __enter__(self) -> Askers:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        for thread in self.threads:
            thread.join()


def test_when_the_edge_is_killed_no_request_is_lost_and_answers_degrade_and_recover(
    tree: Tree, data: ImageData
) -> None:
    with client_of(tree) as client, Askers(tree, data) as askers:
        whole = until_nobody_degrades(client, data, degraded=False)
        assert set(whole.nodes) == {"device", "edge", "cloud"}
        tree.processes["edge"].send_signal(signal.SIGKILL)
        tree.processes["edge"].wait()
        alone = until_nobody_degrades(client, data, degraded=True)
        assert set(alone.nodes) == {"device"}
        assert client.health()["parents_up"] == {"edge": False}
        tree.start("edge")
        tree.wait_for("edge")
        back = until_nobody_degrades(client, data, degraded=False)
        assert back.nodes == whole.nodes
        assert back.classes.tolist() == whole.classes.tolist()
    assert askers.errors == []
    assert askers.answered > 0


def raw(tree: Tree, *pieces: bytes, secure: bool = True) -> bytes:
    """What a node says to bytes, as they are, until it closes or has said something."""
    with socket.create_connection(("127.0.0.1", tree.ports["device"]), timeout=LONGEST) as plain:
        if not secure:
            for piece in pieces:
                plain.sendall(piece)
            try:
                return plain.recv(4096)
            except ConnectionError:
                return b""
        context = ssl.create_default_context(cafile=tree.authority)
        with context.wrap_socket(plain, server_hostname="localhost") as connection:
            try:
                for piece in pieces:
                    connection.sendall(piece)
                return connection.recv(4096)
            except (ConnectionError, ssl.SSLError):
                return b""


def test_nothing_that_is_sent_to_a_node_stops_it(tree: Tree, data: ImageData) -> None:
    bearer = f"Authorization: Bearer {tree.token}\r\n".encode()
    post = b"POST /v1/predict HTTP/1.1\r\nHost: x\r\n" + bearer
    said = {
        "not TLS": raw(tree, b"GET / HTTP/1.1\r\n\r\n", secure=False),
        "not HTTP": raw(tree, os.urandom(2000) + b"\r\n\r\n"),
        "endless headers": raw(tree, b"GET / HTTP/1.1\r\n", *[b"x: " + b"y" * 8000 + b"\r\n"] * 20),
        "negative length": raw(tree, post + b"Content-Length: -1\r\n\r\n"),
        "endless length": raw(tree, post + b"Content-Length: 9" + b"9" * 30 + b"\r\n\r\n"),
        "large": raw(tree, post + b"Content-Length: 100000000\r\n\r\n"),
        "wrong chunks": raw(tree, post + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nabc"),
        "noise": raw(tree, post + b"Content-Length: 500\r\n\r\n" + os.urandom(500)),
        "no token": raw(
            tree, b"POST /v1/predict HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
        ),
        "elsewhere": raw(tree, b"GET /../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n"),
    }
    status = {what: answer[:12].decode(errors="replace")[-3:] for what, answer in said.items()}
    assert status["large"] == "413"
    assert status["noise"] == "400"
    assert status["no token"] == "401"
    assert status["elsewhere"] == "404"
    for what in ("not HTTP", "endless headers", "negative length", "wrong chunks"):
        assert status[what] in ("400", "431", ""), what
    cut = [socket.create_connection(("127.0.0.1", tree.ports["device"])) for _ in range(20)]
    for connection in cut:
        connection.close()
    with client_of(tree) as client:
        assert len(client.predict(data.images[:5]).nodes) == 5
    assert tree.processes["device"].poll() is None


def test_a_wrong_token_is_refused_and_a_wrong_certificate_not_trusted(
    tree: Tree, data: ImageData
) -> None:
    with client_of(tree, token="x" * 32) as client, pytest.raises(RuntimeError, match="401"):
        client.predict(data.images[:1])
    with socket.create_connection(("127.0.0.1", tree.ports["device"])) as plain:
        context = ssl.create_default_context()
        with pytest.raises(ssl.SSLCertVerificationError):
            context.wrap_socket(plain, server_hostname="localhost")


def test_a_node_that_is_told_to_stop_answers_what_it_has_and_ends_well(
    tree: Tree, data: ImageData
) -> None:
    with client_of(tree) as client:
        client.predict(data.images[:5])
        tree.processes["cloud"].terminate()
        assert tree.processes["cloud"].wait(LONGEST) == 0
        answers = until_nobody_degrades(client, data, degraded=True)
        assert set(answers.nodes) <= {"device", "edge"}  # the edge answers in the cloud's place
    for process in tree.processes.values():
        process.terminate()
    assert [process.wait(LONGEST) for process in tree.processes.values()] == [0, 0, 0]


def test_a_node_on_ray_serve_answers_as_one_in_a_process(
    splitter: Splitter, data: ImageData, tmp_path: Path
) -> None:
    splitter.split(chain((4,), ()), {"node1": 0.0}, tmp_path / "parts")
    tree = Tree(tmp_path / "parts", port=free_port(1))
    try:
        tree.start("node1", "--ray", "--replicas", "1..2")
        tree.wait_for("node1")
        with client_of(tree, "node1") as client:
            answers = client.predict(data.images[:60])
        expected = splitter.predictor.answer(next(splitter.predictor.batches(data)), TO_THE_END)
        assert answers.classes.tolist() == expected.classes[:60].tolist()
        assert set(answers.nodes) == {"node1"}
        with Askers(tree, data, count=3, name="node1") as askers:
            time.sleep(3)
        assert askers.errors == []
        stranger = client_of(tree, "node1", token="x" * 32)
        with stranger as client, pytest.raises(RuntimeError, match="401"):
            client.predict(data.images[:1])
        with client_of(tree, "node1") as client:
            with pytest.raises(RuntimeError, match="422"):
                client.predict(data.images[:1, :, :4])
            with pytest.raises(RuntimeError, match="413"):
                client.predict(data.images[:1].repeat(5000, 1, 1, 1))
            assert client.predict(data.images[:1]).nodes == ("node1",)
        tree.processes["node1"].terminate()
        assert tree.processes["node1"].wait(LONGEST) == 0
    finally:
        tree.stop()
