"""Requests that try to get past a proxy to paths that it does not pass on."""

from __future__ import annotations

import re
import socket
import ssl

from trials.security.case import Findings, Found
from trials.security.door import Door
from trials.security.site import Site

CONTROL, FLEET = "/v1/control/list-runs", "/v1/fleet/pull-messages"
PATHS = {
    "`POST /v1/control/list-runs`": CONTROL,
    "`POST /v1/runtime/acquire-task`": "/v1/runtime/acquire-task",
    "`POST /v1/fleet/register-node`": "/v1/fleet/register-node",
    "`/v1/fleet/../control/list-runs`": "/v1/fleet/../control/list-runs",
    "`/v1/fleet/%2e%2e/control/…`": "/v1/fleet/%2e%2e/control/list-runs",
    "`/v1/fleet/..%2fcontrol/…`": "/v1/fleet/..%2fcontrol/list-runs",
    "`/v1/fleet/..\\control\\…`": "/v1/fleet/..\\control\\list-runs",
    "`/v1/fleet/pull-messages/../../control/…`": f"{FLEET}/../../control/list-runs",
    "`/v1/fleet/pull-messages;/../../control/…`": f"{FLEET};/../../control/list-runs",
    "`//v1//control//list-runs`": "//v1//control//list-runs",
    "`/V1/Control/List-Runs`": "/V1/Control/List-Runs",
    "`/v1/%63ontrol/list-runs`": "/v1/%63ontrol/list-runs",
    "`/v1/control/list-runs?/v1/fleet/pull-messages`": f"{CONTROL}?{FLEET}",
    "`/v1/control/list-runs%3F/v1/fleet/…`": f"{CONTROL}%3F{FLEET}",
    "`/v1/fleet/pull-messages%0a`": f"{FLEET}%0a",
    "`/v1/fleet/pull-messages%00`": f"{FLEET}%00",
    "`/v1/fleet/pull-messages%20HTTP/1.1%0d%0a…`": f"{FLEET}%20HTTP/1.1%0d%0aX:%20y",
    "`POST https://localhost/v1/control/list-runs`": f"https://localhost{CONTROL}",
}
HEADERS = {
    "`Host: 127.0.0.1:1`": "Host: 127.0.0.1:1",
    "`Host: x/v1/fleet/pull-messages?`": f"Host: x{FLEET}?",
    "`X-Forwarded-For: 127.0.0.1`": "X-Forwarded-For: 127.0.0.1",
    "`Forwarded: for=127.0.0.1`": "Forwarded: for=127.0.0.1",
    "`X-Original-URL`, `X-Rewrite-URL`": f"X-Original-URL: {FLEET}\r\nX-Rewrite-URL: {FLEET}",
    "`Upgrade: h2c`": "Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__",
}
PROTOBUF = "Content-Type: application/protobuf"


def request(path: str, *headers: str, method: str = "POST", version: str = "1.1") -> bytes:
    """Return a request without a body, as bytes on the wire."""
    own = ["Host: localhost"] if not any(line.startswith("Host:") for line in headers) else []
    lines = [f"{method} {path} HTTP/{version}", *own, *headers, PROTOBUF, "Content-Length: 0"]
    return "\r\n".join([*lines, "", ""]).encode()


def smuggled(first: str) -> bytes:
    """Return a request with another one in its body, with two contradicting lengths."""
    inner = request(CONTROL, "Connection: close")
    head = f"POST {FLEET} HTTP/1.1\r\nHost: localhost\r\n{PROTOBUF}\r\n{first}\r\n\r\n"
    return head.encode() + b"0\r\n\r\n" + inner


def requests() -> dict[str, bytes]:
    """Return all requests, by name."""
    last = "Connection: close"
    found = {name: request(path, last) for name, path in PATHS.items()}
    found |= {f"{name}, to Control": request(CONTROL, h, last) for name, h in HEADERS.items()}
    found |= {f"`GET {path}`": request(path, last, method="GET") for path in ("/health", "/docs")}
    return found | {
        "`GET /openapi.json`": request("/openapi.json", last, method="GET"),
        "`GET /v1/fleet/pull-messages`": request(FLEET, last, method="GET"),
        "`PUT /v1/fleet/pull-messages`": request(FLEET, last, method="PUT"),
        "`POST /v1/fleet/pull-messages`, not signed": request(FLEET, last),
        "`POST /v1/control/list-runs HTTP/1.0`": request(CONTROL, version="1.0"),
        "Fleet, and Control behind it on one connection": request(FLEET) + request(CONTROL, last),
        "Control in a body with two lengths": smuggled(
            "Content-Length: 5\r\nTransfer-Encoding: chunked"
        ),
        "Control in a body, `Transfer-Encoding: xchunked`": smuggled(
            "Content-Length: 5\r\nTransfer-Encoding: xchunked"
        ),
    }


def send(door: Door, data: bytes, seconds: float = 5.0) -> list[str]:
    """Send bytes; return the status of each answer."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    got = b""
    with socket.create_connection(("127.0.0.1", door.port), timeout=seconds) as plain:
        try:
            with tls.wrap_socket(plain) if door.tls else plain as connection:
                connection.sendall(data)
                while piece := connection.recv(65536):
                    got += piece
        except OSError:
            pass
    return re.findall(r"HTTP/1\.[01] (\d{3})", got.decode("latin-1"))


def try_all(site: Site) -> Findings:
    """Send all of them to the public port; only a 2xx would be a success."""
    found = {}
    for name, data in requests().items():
        answers = send(Door(site.public), data)
        found[name] = Found(
            any(answer.startswith("2") for answer in answers), ", ".join(answers) or "closed"
        )
    return found
