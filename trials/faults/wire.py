"""Forwards the traffic between a node and the SuperLink, and acts at a chosen request."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path


class Wire:
    """Passes a node's TLS connections on to the SuperLink.

    When the node requests `path` for the n-th time, `happens` is called in place of the request.
    """

    def __init__(
        self, link: int, state: Path, path: str, times: int, happens: Callable[[], None]
    ) -> None:
        self.happened = threading.Event()
        self._link, self._path, self._times = link, f"{path} HTTP".encode(), times
        self._happens, self._lock = happens, threading.Lock()
        self._as_link = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._as_link.load_cert_chain(state / "server.pem", state / "server.key")
        self._as_node = ssl.create_default_context(cafile=str(state / "ca.crt"))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            caller = self._listener.accept()[0]
            threading.Thread(target=self._connect, args=(caller,), daemon=True).start()

    def _connect(self, caller: socket.socket) -> None:
        with contextlib.suppress(OSError):
            node = self._as_link.wrap_socket(caller, server_side=True)
            plain = socket.create_connection(("127.0.0.1", self._link))
            link = self._as_node.wrap_socket(plain, server_hostname="127.0.0.1")
            back = threading.Thread(target=self._pass, args=(link, node, False), daemon=True)
            back.start()
            self._pass(node, link, True)
        caller.close()

    def _pass(self, source: ssl.SSLSocket, to: ssl.SSLSocket, reads: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if reads and self._is_the_moment(data):
                    self._happens()
                    self.happened.set()
                    break
                to.sendall(data)
        for end in (source, to):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _is_the_moment(self, data: bytes) -> bool:
        with self._lock:
            self._times -= data.count(self._path)
            return self._times <= 0 and self._path in data and not self.happened.is_set()
