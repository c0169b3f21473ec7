"""Settings of a node besides its part: its address, its parents, and its limits."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from inference.serving.forwarding import Forwarder, TransferLimit
from inference.serving.node_part import NodePart
from inference.serving.parent import Address, Parent


class ServeError(ValueError):
    """A node that cannot be started as asked; the text is one sentence."""


@dataclass(frozen=True)
class ServeSettings:
    """Settings with which a node is served."""

    host: str
    port: int
    certificate: Path
    key: Path
    token: str
    authority: Path | None = None
    """Certificate of the authority that signs the parents'; default (None): the system's."""
    parents: Mapping[str, Address] = field(default_factory=dict)
    """Addresses of the parents, by name."""
    parent_timeout: float = 2.0
    """Seconds within which a parent has to answer."""
    half: bool = False
    """Send features as 16-bit floats."""
    max_transfer: float | None = None
    """Samples per second to pass on at most; default (None): as in the node's part."""
    threshold: float | None = None
    """Confidence from which the node answers; default (None): as in the node's part."""
    batch: int = 64
    """Most samples of a request, and of a batch."""
    wait: float = 0.0
    """Seconds that a batch waits for more samples."""
    most_waiting: int = 1024
    """Most samples that may wait."""
    threads: int | None = None
    """Threads of torch; default (None): torch's own choice."""


def check_certificate(settings: ServeSettings) -> None:
    """Raise unless the node's certificate and key exist, are readable and belong together."""
    for file in (settings.certificate, settings.key):
        if not file.is_file():
            raise ServeError(f"{file} is not there: expected a certificate and its key")
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            settings.certificate, settings.key, password=lambda: ""
        )
    except (OSError, ValueError) as error:
        raise ServeError(
            f"{settings.certificate} and {settings.key} are no certificate and its key, without a "
            f"password: {error}"
        ) from None


def forwarder_of(facts: NodePart, settings: ServeSettings) -> tuple[Forwarder, httpx.AsyncClient]:
    """Return the forwarder of the node's samples, and its HTTP client."""
    unknown = sorted(settings.parents.keys() - facts.parents.keys())
    if unknown:
        known = ", ".join(facts.parents) or "none"
        raise ServeError(f"{facts.name} has no parent {unknown[0]!r}; its parents are: {known}")
    for name, address in settings.parents.items():
        if not _is_https(address.url):
            raise ServeError(f"parent {name} is at {address.url!r}: expected https://HOST:PORT")
    try:
        context = ssl.create_default_context(cafile=settings.authority)
    except (OSError, ssl.SSLError) as error:
        raise ServeError(f"{settings.authority} is no certificate: {error}") from None
    client = httpx.AsyncClient(
        verify=context,
        # Waiting for a connection of our own must end well before the parent's time does.
        timeout=httpx.Timeout(settings.parent_timeout, pool=settings.parent_timeout / 4),
        limits=httpx.Limits(max_connections=64, max_keepalive_connections=16),
        trust_env=False,
    )
    parents = [
        Parent(
            name,
            address,
            client,
            settings.half,
            patience=settings.parent_timeout,
            classes=len(facts.classes),
        )
        for name, address in settings.parents.items()
    ]
    return Forwarder(parents, facts.parents, settings.batch), client


def _is_https(url: str) -> bool:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        return False
    return parsed.scheme == "https" and bool(parsed.host)


def limit_of(facts: NodePart, settings: ServeSettings) -> TransferLimit:
    """Return the limit on the samples that the node may pass on."""
    given = settings.max_transfer
    return TransferLimit(facts.max_transfer if given is None else given)
