"""Nodes as processes, asked over TLS: under load, killed, stopped, and sent invalid requests."""

from __future__ import annotations

import os
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from data.clients import global_test
from data.examples import ImageData
from inference.serving.client import ServiceClient
from inference.serving.node_metrics import process_memory
from inference.serving.settings import ServeError
from inference.serving.wire import DEGRADED, Answers, pack
from nestfl.commands.serving_tree import Tree
from server_app.predictor import TO_THE_END
from server_app.splitting import Splitter, chain
from tests.support.served import small_run

pytestmark = pytest.mark.processes

CLOSED = b""
"""Answer of a node that closes a connection without a word."""
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
def nodes(splitter: Splitter, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    folder = tmp_path_factory.mktemp("split") / "parts"
    topology = chain((1, 2, 4), (0.5, 0.5))
    splitter.split(topology, splitter.thresholds(topology), folder)
    tree = started(folder)
    try:
        yield tree
    finally:
        tree.stop()


@pytest.fixture
def tree(nodes: Tree) -> Tree:
    """The nodes, all of which run, whatever the last test did to them."""
    gone = list(nodes.ended())
    for name in gone:
        nodes.start(name)
    for name in gone:
        nodes.wait_for(name)
    return nodes


def started(folder: Path, *options: str) -> Tree:
    """The nodes of a folder; others may take a port that was free, so that it is tried again."""
    for tries in range(5):
        count = sum(path.is_dir() and path.name[0] != "." for path in folder.iterdir())
        tree = Tree(folder, port=free_port(count, 1000 * tries))
        try:
            tree.start_all(*options)
        except ServeError as error:
            tree.stop()
            said = str(error)
        else:
            return tree
    raise AssertionError(said)


def free_port(count: int, after: int = 0) -> int:
    """Return the first of `count` free ports in a row."""
    for port in range(20_000 + os.getpid() % 10_000 + after, 60_000, count):
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
    """Return a node's answer to raw bytes, until it closes or has answered."""
    with socket.create_connection(("127.0.0.1", tree.ports["device"]), timeout=LONGEST) as plain:
        if not secure:
            for piece in pieces:
                plain.sendall(piece)
            try:
                return plain.recv(4096)
            except ConnectionError:
                return CLOSED
        context = ssl.create_default_context(cafile=tree.authority)
        with context.wrap_socket(plain, server_hostname="localhost") as connection:
            try:
                for piece in pieces:
                    connection.sendall(piece)
                return connection.recv(4096)
            except (ConnectionError, ssl.SSLError):
                return CLOSED


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
    for what in ("not HTTP", "negative length", "endless length", "wrong chunks"):
        assert status[what] == "400", what
    assert status["endless headers"] in ("400", "431", "")  # closed while we still wrote
    assert not said["not TLS"].startswith(b"HTTP")  # closed, or TLS' own alert
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


def test_memory_does_not_grow_with_requests(tree: Tree, data: ImageData) -> None:
    with client_of(tree) as client:

        def ask(times: int) -> dict[str, int]:
            for _ in range(times):
                client.predict(data.images[:64])
            return {name: process_memory(each.pid) for name, each in tree.processes.items()}

        before = ask(30)
        after = ask(120)
    # 7,680 samples: it finds what keeps 5 kB of each, and not what keeps less, such as features
    # alone, for a process may grow by some megabytes without a leak.
    for name, bytes_before in before.items():
        assert after[name] - bytes_before < 40e6, name


def test_a_node_that_is_told_to_stop_answers_what_it_has_and_ends_well(
    tree: Tree, data: ImageData
) -> None:
    with client_of(tree) as client, Askers(tree, data) as askers:
        until(lambda: askers.answered > 0)
        tree.processes["cloud"].terminate()  # which has requests now
        assert tree.processes["cloud"].wait(LONGEST) == 0
        answers = until_nobody_degrades(client, data, degraded=True)
        assert set(answers.nodes) <= {"device", "edge"}  # the edge answers in the cloud's place
    assert askers.errors == []
    with slow_request(tree, data) as finish:
        tree.processes["device"].terminate()
        until(lambda: not listens(tree, "device"))
        assert finish().startswith(b"HTTP/1.1 200")
    for process in tree.processes.values():
        process.terminate()
    assert [process.wait(LONGEST) for process in tree.processes.values()] == [0, 0, 0]


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + LONGEST
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def listens(tree: Tree, name: str) -> bool:
    try:
        socket.create_connection(("127.0.0.1", tree.ports[name]), timeout=LONGEST).close()
    except OSError:
        return False
    return True


@contextmanager
def slow_request(tree: Tree, data: ImageData) -> Iterator[Callable[[], bytes]]:
    """A request whose head the node has read; what is given sends the body, and returns the answer.

    The node says that it has read the head by asking for the rest (Expect: 100-continue).
    """
    body = pack((data.images[:3],))
    head = (
        f"POST /v1/predict HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {tree.token}\r\n"
        f"Content-Length: {len(body)}\r\nExpect: 100-continue\r\n\r\n"
    )
    context = ssl.create_default_context(cafile=tree.authority)
    with (
        socket.create_connection(("127.0.0.1", tree.ports["device"]), timeout=LONGEST) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        connection.sendall(head.encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 100")

        def finish() -> bytes:
            connection.sendall(body)
            return connection.recv(4096)

        yield finish


def test_a_node_on_ray_serve_answers_as_one_in_a_process(
    splitter: Splitter, data: ImageData, tmp_path: Path
) -> None:
    splitter.split(chain((4,), ()), {"node1": 0.0}, tmp_path / "parts")
    tree = started(tmp_path / "parts", "--ray", "--replicas", "1..2")
    try:
        with client_of(tree, "node1") as client:
            answers = client.predict(data.images[:60])
        expected = splitter.predictor.answer(next(splitter.predictor.batches(data)), TO_THE_END)
        assert answers.classes.tolist() == expected.classes[:60].tolist()
        assert set(answers.nodes) == {"node1"}
        with Askers(tree, data, count=3, name="node1") as askers:
            until(lambda: askers.answered > 200 or bool(askers.errors))
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
