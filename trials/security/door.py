"""Sends an attacker's requests: Flower's messages over HTTP, with the attacker's credentials."""

from __future__ import annotations

import ssl
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.proto.fleet_pb2 import ActivateNodeRequest, ActivateNodeResponse
from flwr.supercore.constant import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    TASK_TOKEN_HEADER,
)
from flwr.supercore.date import now
from flwr.supercore.interceptors import (
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
)
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata
from flwr.superlink.grid.http_grid import HttpGrid
from google.protobuf.message import DecodeError, Message  # type: ignore[import-untyped]

VERSION = dict(RuntimeVersionMetadata.from_local_component("flwr-serverapp").as_metadata())
Proto = TypeVar("Proto", bound=Message)


@dataclass(frozen=True)
class Answer:
    """The answer to a request; status 0 without one."""

    status: int
    body: bytes = b""
    why: str = ""

    def __str__(self) -> str:
        return str(self.status) if self.status else self.why

    @property
    def good(self) -> bool:
        return self.status == 200

    def read(self, kind: type[Proto]) -> Proto:
        """Return the message in the answer; an empty one if it holds none."""
        message: Proto = kind()
        if self.good:
            with suppress(DecodeError):
                message.ParseFromString(self.body)
        return message


@dataclass(frozen=True)
class Key:
    """A device's private key, which signs its requests."""

    private: ec.EllipticCurvePrivateKey

    @classmethod
    def of(cls, file: Path) -> Key:
        private = load_ssh_private_key(file.read_bytes(), None)
        assert isinstance(private, ec.EllipticCurvePrivateKey)
        return cls(private)

    @property
    def public(self) -> bytes:
        return public_key_to_bytes(self.private.public_key())

    def headers(self) -> dict[str, str]:
        """Sign like Flower's SuperNodes: the time, but not the request."""
        time = now().isoformat()
        signature = sign_message(self.private, time.encode("ascii"))
        return {
            FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(self.public).decode(),
            TIMESTAMP_HEADER: time,
            FLEET_HTTP_SIGNATURE_HEADER: b64encode(signature).decode(),
        }


@dataclass(frozen=True)
class Door:
    """A port, and the credentials that an attacker uses there."""

    port: int
    authority: Path | None = None
    """Without one, an attacker does not check the server's certificate."""
    key: Key | None = None
    tls: bool = True

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.port}"

    def context(self) -> ssl.SSLContext | bool:
        if self.authority is None:
            return False
        return ssl.create_default_context(cafile=self.authority)

    def client(self) -> httpx.Client:
        return httpx.Client(verify=self.context(), timeout=30.0, trust_env=False)

    def post(
        self,
        path: str,
        message: Message | bytes | Iterator[bytes] = b"",
        token: str = "",
        client: httpx.Client | None = None,
    ) -> Answer:
        """Send a request like Flower's programs, signed with a key and with a task's token, if
        any."""
        body = message.SerializeToString() if isinstance(message, Message) else message
        shown = {"content-type": PROTOBUF_MEDIA_TYPE, **VERSION}
        shown |= self.key.headers() if self.key else {}
        shown |= {TASK_TOKEN_HEADER: token} if token else {}
        try:
            if client is not None:
                found = client.post(self.url + path, content=body, headers=shown)
            else:
                with self.client() as client:
                    found = client.post(self.url + path, content=body, headers=shown)
        except httpx.HTTPError as error:
            return Answer(0, why=type(error).__name__)
        return Answer(found.status_code, found.content)

    def activate(self) -> int:
        """Come online as the node with this key; return its number, or 0 if it is refused."""
        assert self.key is not None
        asked = ActivateNodeRequest(public_key=self.key.public, heartbeat_interval=1800)
        return self.post("/v1/fleet/activate-node", asked).read(ActivateNodeResponse).node_id

    def with_key(self, key: Key) -> Door:
        return replace(self, key=key)

    def grid(self, token: str) -> HttpGrid:
        """Return the Grid of a ServerApp with this token, which reaches all devices."""
        grid = HttpGrid(f"127.0.0.1:{self.port}", token=token)
        grid._client = RuntimeHttpClient(
            self.url,
            verify=self.context(),
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="flwr-serverapp"),
                RuntimeTokenHttpInterceptor(token=token),
            ],
        )
        return grid
