"""A Python client of a node: `ServiceClient(url, token, ca).predict(images)`."""

from __future__ import annotations

import ssl
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import torch
from torch import Tensor

from inference.serving.wire import MEDIA_TYPE, Answers, pack


class ServiceClient:
    """A connection to a node that reads inputs."""

    def __init__(self, url: str, token: str, authority: Path | str, timeout: float = 30.0) -> None:
        if not url.startswith("https://"):
            raise ValueError(
                f"a node at {url!r}: expected https://HOST:PORT, for the token is sent"
            )
        context = ssl.create_default_context(cafile=authority)
        self._client = httpx.Client(
            base_url=url,
            verify=context,
            timeout=timeout,
            headers={"Authorization": f"Bearer {token}", "Content-Type": MEDIA_TYPE},
            trust_env=False,
        )

    def predict(self, inputs: Tensor) -> Answers:
        """Return the answers to a batch.

        The batch holds uint8 images [n, channels, height, width], series [n, channels, length] as
        measured, or tokens [n, tokens].
        """
        if inputs.dtype == torch.int64:
            inputs = inputs.int()
        elif inputs.dtype == torch.float64:
            inputs = inputs.float()
        response = self._client.post("/v1/predict", content=pack((inputs,)))
        if response.status_code != 200:
            raise RuntimeError(f"{response.status_code}: {response.text}")
        return Answers.unpack(response.content, len(inputs))

    def health(self) -> dict[str, Any]:
        """Return the node's health report."""
        found: dict[str, Any] = self._client.get("/health").raise_for_status().json()
        return found

    def metrics(self) -> str:
        """Return the node's counters in Prometheus' text format."""
        return self._client.get("/metrics").raise_for_status().text

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
