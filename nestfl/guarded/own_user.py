"""Makes a server on loopback answer its own user only.

Flower's SuperLink and SuperNodes do not authenticate their callers: any process that reaches their
port on this machine may submit runs, stop them, and take their tasks. Linux knows the user of each
connection.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any
from warnings import warn

import uvicorn

CONNECTIONS = Path("/proc/net/tcp")
ESTABLISHED, LISTENING = "01", "0A"
"""Connection states for which the kernel names the user; for a closed connection it says 0."""
NOBODY = "00000000:0000"
"""Remote address of a listening port."""
LOOPBACK, BACKLOG = "127.0.0.1", 128
FLEET = "/v1/fleet/"
REFUSAL = b"this port answers only to the user who started it\n"
UNKNOWN = b"whose connection this is cannot be told now\n"
LOOKS = 3
"""Reads of the kernel's list: a list that changes while it is read may miss a line."""

Address = Sequence[Any]
"""Host and port."""
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


def own_port(port: int) -> socket.socket:
    """Take a port of loopback (0: any free port) and listen, so that no other process can take it.

    Connections wait until the server has started.
    """
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((LOOPBACK, port))
    listener.listen(BACKLOG)
    return listener


def guard_servers(listener: socket.socket | None = None, proxy_user: int | None = None) -> None:
    """Make the server that this process starts answer only its own user, at its own port.

    `proxy_user`, the user of a proxy in front of it, reaches the Fleet API.
    """
    if not CONNECTIONS.exists():
        if sys.platform == "linux":
            sys.exit(f"{CONNECTIONS} is not there, and without it all users could reach this port")
        text = "only Linux tells whose a connection is: all users of this machine reach its ports"
        warn(text, stacklevel=2)
        return
    configure, run = uvicorn.Config.__init__, uvicorn.Server.run

    @wraps(configure)
    def guarded(self: uvicorn.Config, app: Any, *arguments: Any, **options: Any) -> None:
        # otherwise a request's header could claim another connection
        options["proxy_headers"] = False
        configure(self, OwnUserOnly(app, proxy_user), *arguments, **options)

    def listening(self: uvicorn.Server) -> None:
        run(self, [listener] if listener else None)

    uvicorn.Config.__init__ = guarded  # type: ignore[method-assign]
    uvicorn.Server.run = listening  # type: ignore[method-assign,assignment]


class OwnUserOnly:
    """An application that refuses the requests of other users before it reads them."""

    def __init__(self, application: Application, proxy_user: int | None = None) -> None:
        self.application = application
        self.proxy_user = proxy_user

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        user = None if scope["type"] == "lifespan" else owner(scope["client"], scope["server"])
        if scope["type"] == "lifespan" or self._may_ask(user, scope):
            await self.application(scope, receive, send)
        elif scope["type"] == "http":
            # Flower retries after a 503; a 403 would tell it that its run has ended.
            status, body = (503, UNKNOWN) if user is None else (403, REFUSAL)
            headers = [(b"content-type", b"text/plain"), (b"connection", b"close")]
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": body})
        else:
            await send({"type": "websocket.close"})

    def _may_ask(self, user: int | None, scope: Scope) -> bool:
        if user is None:
            return False
        from_proxy = user == self.proxy_user and scope["path"].startswith(FLEET)
        return user == os.getuid() or from_proxy


def owner(client: Address | None, server: Address | None) -> int | None:
    """Return the user of a connection to a server of this machine; None if it is not known."""
    if client is None or server is None:
        return None
    return _user_of([_written(client), _written(server), ESTABLISHED])


def is_own(port: int) -> bool:
    """Return whether this user listens at a loopback port; True if the kernel does not tell."""
    if not CONNECTIONS.exists():
        return True
    return _user_of([_written((LOOPBACK, port)), NOBODY, LISTENING]) == os.getuid()


def _user_of(connection: list[str]) -> int | None:
    for _ in range(LOOKS):
        for line in CONNECTIONS.read_text().splitlines()[1:]:
            fields = line.split()
            if fields[1:4] == connection:
                return int(fields[7])
    return None


def _written(address: Address) -> str:
    """Return an address in the kernel's notation: a number in this machine's byte order."""
    host, port = address
    try:
        number = int.from_bytes(socket.inet_aton(host), sys.byteorder)
    except OSError:
        return ""  # of another address family, so no user's here
    return f"{number:08X}:{port:04X}"
