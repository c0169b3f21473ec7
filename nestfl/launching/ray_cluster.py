"""A Ray cluster that is there already: its workers get the app and the plugins of each run."""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path

import plugins
from nestfl.bundle import copy_app

PATIENCE = 5.0
"""Seconds that the cluster has to answer."""
SENT = "sent"
"""The folder of what the cluster gets."""


def cluster() -> str | None:
    """Return the address of the cluster that runs go to; None where each has a Ray of its own."""
    return os.environ.get("RAY_ADDRESS") or None


def require_cluster() -> None:
    """Raise where a cluster is named and nobody answers: Ray would ask there for many minutes."""
    host, colon, port = (cluster() or "").rpartition(":")
    if not colon or "/" in host or not port.isdigit():
        return  # Ray finds `auto` itself, and reads the rest
    try:
        socket.create_connection((host.strip("[]"), int(port)), PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise ValueError(
            f"no Ray cluster answers at RAY_ADDRESS={cluster()} ({error}): start it (`ray start "
            "--head`), or unset RAY_ADDRESS for a Ray of the run's own"
        ) from None


def join_cluster(app: Path, folder: Path) -> None:
    """Connect this process to the cluster, whose workers import a copy of its app and plugins.

    Ray brings the copy to each machine, and runs with others beside this one have other workers.
    """
    import ray

    sent = folder / SENT
    copy_app(app, sent, plugins.files())
    (sent / ".gitignore").unlink(missing_ok=True)  # Ray, too, would leave out what it names
    ray.init(cluster(), logging_level=logging.ERROR, runtime_env={"working_dir": str(sent)})
