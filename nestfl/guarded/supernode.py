"""`flower-supernode` that answers its own user only, and runs only the code that it allows.

    nestfl-supernode [--client-certificate FILE] ARGUMENTS

The certificate is for a proxy that asks for one; its key is the one the SuperNode signs with.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_ssh_private_key,
)
from flwr.common.config import parse_config_args
from flwr.supercore.exit import register_signal_handlers
from flwr.supernode import start_client_internal
from flwr.supernode.cli.flower_supernode import flower_supernode

from nestfl import leave_app
from nestfl.bundle import APP, BundleError
from nestfl.guarded.own_user import guard_servers, own_port
from nestfl.guarded.pinned_code import CodeError, allowed_code, fingerprint_of
from nestfl.guarded.replacing import replace

LAUNCHER = [sys.executable, "-P", "-m", "nestfl.guarded.launcher"]
SECRET_BYTES = 32
TOO_MANY, BUSY = 429, 503


def main() -> None:
    """Serve until it is stopped."""
    leave_app()
    ours, flowers = options()
    own = checked_code(ours.node_config)
    try:
        guard_servers(own_port(ours.port))
    except OSError as error:
        sys.exit(f"port {ours.port} cannot be had ({error.strerror}): choose another (NODE_PORT)")
    connect_patiently(certificate_of(ours) if ours.client_certificate is not None else None)
    secret = secrets.token_bytes(SECRET_BYTES)
    command = [*LAUNCHER, str(ours.port), str(os.getpid()), own, ours.node_config]
    launcher = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert launcher.stdin is not None
    with launcher.stdin as to_launcher:
        to_launcher.write(secret)
    process = ["--isolation", "process", "--superexec-auth-secret-file", readable_once(secret)]
    sys.argv[1:] = [*flowers, *process]
    sign_off_in_peace()
    flower_supernode()
    # It returns only after an error, but its port's thread would keep the process alive and deaf.
    # The service manager starts it again.
    os._exit(1)


def options() -> tuple[argparse.Namespace, list[str]]:
    """Return the arguments that this process needs, and Flower's own."""
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("--client-certificate", type=Path)
    ours, flowers = parser.parse_known_args()
    parser.add_argument("--node-config", default="")
    parser.add_argument("--port", type=int, default=9094)
    for name in ("auth-supernode-private-key", "root-certificates"):
        parser.add_argument(f"--{name}", type=Path)
    parser.parse_known_args(flowers, ours)
    return ours, flowers


def checked_code(node_config: str) -> str:
    """Return this checkout's fingerprint, after checking the node config's allowed code.

    A device without a checkout has no fingerprint: its node config must name the allowed code.
    """
    said = parse_config_args([node_config] if node_config else None).get("code")
    try:
        own = fingerprint_of(APP) if said is None else ""
        allowed = allowed_code(None if said is None else str(said), own)
    except (BundleError, CodeError) as error:
        sys.exit(str(error))
    names = "any code" if allowed is None else ", ".join(sorted(allowed))
    print(f"this device runs {names}", flush=True)
    return own


def certificate_of(ours: argparse.Namespace) -> ssl.SSLContext:
    """Return a TLS context that presents the client certificate when a server asks for one.

    Its key is the SuperNode's own, which is in an SSH format that TLS does not read.
    """
    tls = ssl.create_default_context(cafile=ours.root_certificates)
    private = load_ssh_private_key(ours.auth_supernode_private_key.read_bytes(), None)
    plain = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with tempfile.NamedTemporaryFile() as file:  # readable by its owner only
        file.write(plain)
        file.flush()
        tls.load_cert_chain(ours.client_certificate, file.name)
    return tls


def connect_patiently(tls: ssl.SSLContext | None) -> None:
    """Make Flower retry after a proxy's 429 (too many requests), which it takes for a failure."""
    client = httpx.Client

    def come_back_later(response: httpx.Response) -> None:
        if response.status_code == TOO_MANY:
            response.status_code = BUSY

    def patient(**options: Any) -> httpx.Client:
        shown = {} if tls is None else {"verify": tls}
        return client(**(options | shown), event_hooks={"response": [come_back_later]})

    replace(httpx, "Client", patient)


def sign_off_in_peace() -> None:
    """Keep a second signal from interrupting the sign-off that the first one has started.

    Stopping a whole process group sends two signals, one of them from supernode.sh. At the first
    signal Flower restores the earlier handlers.
    """
    started = threading.Event()

    def registered(*arguments: Any, **options: Any) -> None:
        started.set()
        register_signal_handlers(*arguments, **options)

    def before_or_after(*_: object) -> None:
        if not started.is_set():
            sys.exit(0)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, before_or_after)
    replace(start_client_internal, "register_signal_handlers", registered)


def readable_once(secret: bytes) -> str:
    """Return the path of a file in memory that only this process can read, once."""
    reading, writing = os.pipe()
    with os.fdopen(writing, "wb") as pipe:
        pipe.write(secret)
    return f"/dev/fd/{reading}"
