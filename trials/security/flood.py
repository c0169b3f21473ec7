"""Attacks on resources: a body of 1 GB, many requests, and requests that never end."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import ssl
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from trials.faults.processes import running
from trials.security.case import Found
from trials.security.door import Answer, Door
from trials.security.tricks import request, send

CHUNK = 2**20
BODY = 2**30
QUICK = 2000
CONNECTIONS = 400
SLOW = 50
PATIENT = 20.0
"""Seconds after which slow requests are checked."""
MUCH = 2**29
"""Most bytes that a server's memory may grow by."""
FLEET = "/v1/fleet/pull-messages"


def process_of(words: str) -> int:
    """Return the process of this script whose command line holds these words."""
    found = processes_of(words)
    assert found, f"no process {words}"
    return found[0]


def processes_of(words: str) -> list[int]:
    return [pid for pid, command in running(os.getpid()).items() if re.search(words, command)]


def peak(pid: int) -> int:
    """Return the most bytes that a process has had in memory since `forget_peak`."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) * 1024  # type: ignore[index]


def forget_peak(pid: int) -> None:
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")


def megabytes(count: int) -> Iterator[bytes]:
    """Yield `count` bytes, a megabyte at a time."""
    yield from (b"\0" * CHUNK for _ in range(count // CHUNK))


def big_body(door: Door, pid: int, chunked: bool, path: str = FLEET, size: int = BODY) -> Found:
    """Send 1 GB, with its length or without; check the growth of the server's memory."""
    forget_peak(pid)
    before = peak(pid)
    headers = {"content-type": "application/protobuf"}
    if not chunked:
        headers["content-length"] = str(size)
    headers |= door.key.headers() if door.key else {}
    sent = 0

    def body() -> Iterator[bytes]:
        nonlocal sent
        for piece in megabytes(size):
            sent += len(piece)
            yield piece

    try:
        with httpx.Client(verify=door.context(), timeout=120, trust_env=False) as client:
            found = client.post(door.url + path, content=body(), headers=headers)
            answer = Answer(found.status_code)
    except httpx.HTTPError as error:
        answer = Answer(0, why=f"connection closed ({type(error).__name__})")
    grown = peak(pid) - before
    how = "chunked" if chunked else "with its length"
    took = f"{sent / size:.0%} sent, memory {before / 2**30:.2f} to {peak(pid) / 2**30:.2f} GB"
    return Found(grown > MUCH, f"1 GB {how}: {answer}, {took}")


def many(door: Door) -> Found:
    """Send as many requests as possible at once, on many connections; check the answers."""
    data = request(FLEET) * (QUICK // CONNECTIONS - 1) + request(FLEET, "Connection: close")
    began = time.monotonic()
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        answers = pool.map(lambda _: send(door, data, seconds=60), range(CONNECTIONS))
        found = Counter(status for statuses in answers for status in statuses)
    took = time.monotonic() - began
    said = ", ".join(f"{count} x {status}" for status, count in found.most_common())
    refused = found["429"] + QUICK - found.total()
    how = f"{QUICK} requests on {CONNECTIONS} connections"
    return Found(not refused, f"{how}: {said}, in {took:.0f} s")


def slow(door: Door) -> Found:
    """Open connections and never end a request; count those that are still open."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    opened = []
    for _ in range(SLOW):
        plain = socket.create_connection(("127.0.0.1", door.port), timeout=5)
        connection = tls.wrap_socket(plain) if door.tls else plain
        connection.sendall(b"POST /v1/fleet/pull-messages HTTP/1.1\r\nHost: localhost\r\n")
        opened.append(connection)
    time.sleep(PATIENT)
    held = sum(map(_open, opened))
    for connection in opened:
        connection.close()
    return Found(held > 0, f"{SLOW} unfinished requests: {held} still held after {PATIENT:.0f} s")


def _open(connection: socket.socket) -> bool:
    connection.settimeout(0.05)
    try:
        return connection.recv(1) != b""
    except TimeoutError:
        return True
    except OSError:
        return False
