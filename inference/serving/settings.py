"""What a node is told besides its part: where to listen, whom to ask, and how much to take on."""

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
    """A node that cannot be started as asked, in one sentence."""


@dataclass(frozen=True)
class ServeSettings:
    """How a node is served."""

    host: str
    port: int
    certificate: Path
    key: Path
    token: str
    authority: Path | None = None
    """The certificate that those of parents are signed with; None takes the system's."""
    parents: Mapping[str, Address] = field(default_factory=dict)
    """Where the parents are, by name."""
    parent_timeout: float = 2.0
    """Seconds after which a parent's answer is not waited for any longer."""
    half: bool = False
    """Whether features are sent with 16 bits each."""
    max_transfer: float | None = None
    """In place of that of the node's part."""
    threshold: float | None = None
    """Likewise."""
    batch: int = 64
    """The most samples of a request, and of what is computed at once."""
    wait: float = 0.0
    """Seconds that a batch waits for more."""
    most_waiting: int = 1024
    """Samples that may wait."""
    threads: int | None = None
    """Of torch."""


def check_certificate(settings: ServeSettings) -> None:
    """Raise unless the node's certificate and its key are there, readable and of each other."""
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
    """Return what passes samples on, and the connections that it does so with."""
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
        # A wait for a connection of our own ends well before that for the parent.
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
    """Return how many samples the node may pass on."""
    given = settings.max_transfer
    return TransferLimit(facts.max_transfer if given is None else given)
